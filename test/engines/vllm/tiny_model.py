"""Makes a Qwen3-MoE with random weights, small enough to run on a CPU in milliseconds a step."""

from pathlib import Path

VOCABULARY = 199  # small, so that random text repeats itself: n-gram drafts are then accepted
LAYERS = 5
DENSE_LAYERS = [1]  # has no router: its ids are 0 in what vLLM returns
EXPERTS = 16
TOP_K = 4
MAX_LENGTH = 512


def make_model(folder: Path, seed: int = 0) -> Path:
    """Writes the model's configuration and weights into `folder`, unless they are there."""
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        mlp_only_layers=DENSE_LAYERS,
        max_position_embeddings=MAX_LENGTH,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3MoeForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:  # a router that tells experts apart, and text that varies
                parameter.normal_(0.0, 1.0 / parameter.shape[-1] ** 0.5)
            if name.endswith("mlp.gate.weight"):
                parameter.mul_(4.0)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return folder
