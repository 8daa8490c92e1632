"""Makes a MoE with random weights as a GGUF file, with a dense layer and a shared expert.

Arguments: the folder to write model.gguf and config.json into, then layers, experts, top-k and width.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf_sizes import VOCABULARY

CONTEXT = 1024
HEADS = 4


def main() -> None:
    folder = Path(sys.argv[1])
    layers, experts, top_k, width = map(int, sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model.gguf", layers, experts, top_k, width)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "deepseek", "num_hidden_layers": layers, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "n_routed_experts": experts, "num_experts_per_tok": top_k, "n_shared_experts": 1,
    }))


def write_model(path: Path, layers: int, experts: int, top_k: int, width: int) -> None:
    """As llama.cpp's `deepseek` architecture has it. Its first layer has no router."""
    writer = gguf.GGUFWriter(path, "deepseek")
    expert_width = width // 2
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(width // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(top_k)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(expert_width)
    writer.add_expert_weights_scale(1.0)

    random = np.random.default_rng(1)

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        """A matrix of [outputs][inputs], or several."""
        values = random.standard_normal(shape, dtype=np.float32) * (scale / shape[-1] ** 0.5)
        writer.add_tensor(f"{name}.weight", values)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, dtype=np.float32))

    add("token_embd", VOCABULARY, width, scale=width**0.5)
    add_norm("output_norm")
    add("output", VOCABULARY, width)
    for layer in range(layers):
        name = f"blk.{layer}."
        add_norm(name + "attn_norm")
        add_norm(name + "ffn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(name + part, width, width)
        if layer == 0:
            add(name + "ffn_gate", 2 * width, width)
            add(name + "ffn_up", 2 * width, width)
            add(name + "ffn_down", width, 2 * width)
            continue
        add(name + "ffn_gate_inp", experts, width, scale=4.0)  # a router that tells experts apart
        for kind, count in (("exps", (experts,)), ("shexp", ())):
            add(name + f"ffn_gate_{kind}", *count, expert_width, width)
            add(name + f"ffn_up_{kind}", *count, expert_width, width)
            add(name + f"ffn_down_{kind}", *count, width, expert_width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
