"""Compares rows with what `transformers` computes for the same tokens."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Logits closer than this are a tie: two engines that add floats in another order may pick either.
TIE = 1e-4


@dataclass
class Verdict:
    """What was found in the rows of one run."""

    requests: int = 0
    expected: int = 0  # rows
    equal: int = 0
    ties: int = 0  # equal but for experts whose logits are a tie
    wrong: int = 0
    shapes: int = 0  # requests whose array has another shape than it should
    first: str = ""  # the first fault

    def fault(self, text: str) -> None:
        self.first = self.first or text


class Oracle:
    """The model in `transformers`, which remembers the sequences that it has seen."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import Qwen3MoeForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self._model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        config = self._model.config
        self.top_k: int = config.num_experts_per_tok
        self.num_layers: int = config.num_hidden_layers
        self.layers = [layer for layer in range(self.num_layers) if layer not in config.mlp_only_layers]
        self._seen: dict[bytes, NDArray[np.float32]] = {}

    def logits(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Router logits [tokens][MoE layers][experts]."""
        key = tokens.tobytes()
        if key not in self._seen:
            with self._torch.inference_mode():
                output = self._model(self._torch.from_numpy(tokens)[None], output_router_logits=True)
            self._seen[key] = np.stack([layer.float().numpy() for layer in output.router_logits], axis=1)
        return self._seen[key]

    def judge(self, file: Path) -> Verdict:
        """Judges the outputs that run.py wrote."""
        verdict = Verdict()
        with np.load(file) as outputs:
            for name in sorted({key.rsplit("/", 1)[0] for key in outputs.files}):
                self._judge_request(verdict, name, outputs)
        return verdict

    def _judge_request(self, verdict: Verdict, name: str, outputs: Any) -> None:
        tokens, start = outputs[f"{name}/tokens"], int(outputs[f"{name}/start"])
        wanted = (len(tokens) - 1 - start, self.num_layers, self.top_k)
        verdict.requests += 1
        verdict.expected += wanted[0]
        routes = outputs[f"{name}/routes"] if f"{name}/routes" in outputs else np.zeros((0, 0, 0), np.uint8)
        if routes.shape != wanted:
            verdict.shapes += 1
            verdict.fault(f"{name}: shape {routes.shape} instead of {wanted}")
            return
        dense = [layer for layer in range(self.num_layers) if layer not in self.layers]
        if routes[:, dense].any():
            verdict.fault(f"{name}: ids other than 0 in dense layers")
            verdict.wrong += wanted[0]
            return
        logits = self.logits(tokens)[start : len(tokens) - 1]
        picked = routes[:, self.layers].astype(np.int64)
        equal, tied = compare(picked, logits)
        verdict.equal += int(equal.sum())
        verdict.ties += int((tied & ~equal).sum())
        wrong = ~(equal | tied)
        verdict.wrong += int(wrong.sum())
        if wrong.any():
            position = int(np.argmax(wrong))
            best = np.sort(np.argsort(-logits[position], axis=-1)[:, : self.top_k], axis=-1)
            verdict.fault(f"{name}: token {start + position} of {len(tokens)} has "
                          f"{np.sort(picked[position]).tolist()} instead of {best.tolist()}")


def compare(
    picked: NDArray[np.int64], logits: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each row of picked [n][layers][top_k]: whether its sets are those of the largest logits
    [n][layers][experts]; and whether its picks are distinct and none is below those by more than TIE."""
    top_k = picked.shape[-1]
    order = np.argsort(-logits, axis=-1, kind="stable")
    equal = (np.sort(order[..., :top_k], axis=-1) == np.sort(picked, axis=-1)).all(axis=(1, 2))
    distinct = (np.diff(np.sort(picked, axis=-1), axis=-1) > 0).all(axis=(1, 2))
    last = np.take_along_axis(logits, order[..., top_k - 1 : top_k], axis=-1)
    of_picked = np.take_along_axis(logits, picked, axis=-1)
    return equal, distinct & (of_picked >= last - TIE).all(axis=(1, 2))


def main() -> None:
    """oracle.py MODEL FOLDER...: prints a JSON object of the verdicts."""
    oracle = Oracle(Path(sys.argv[1]))
    verdicts = {name: asdict(oracle.judge(Path(name) / "outputs.npz")) for name in sys.argv[2:]}
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
