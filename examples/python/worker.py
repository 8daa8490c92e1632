"""A worker: captures the picks of a simulated model's router, and publishes them step by step.

    python worker.py [device|shm] [instance]
"""

import sys

import numpy as np
import numpy.typing as npt
from common import BLOCK_SIZE, BLOCKS, STEPS, make_endpoint, tokens_of

import moetap


def router(tokens: range, layer: int) -> npt.NDArray[np.int32]:
    """Your model's router. Any distinct expert ids [tokens][top_k] do here."""
    positions = np.arange(tokens.start, tokens.stop, dtype=np.int32)
    return np.stack([(positions * 7 + layer * 3 + k * 5) % 16 for k in range(2)], axis=1)


def run(transport: str, instance: str) -> None:
    endpoint = make_endpoint(instance)
    # On a GPU if there is one. There, pass the model's tensors: capture() reads them in stream order.
    with moetap.Capturer(endpoint, transport="shm" if transport == "shm" else "device") as capturer:
        capturer.bind_all()
        print(f"worker: {capturer!r}", flush=True)
        for step in range(1, STEPS + 1):
            tokens = tokens_of(step)
            try:
                # Given up, and so missing, if the forward pass raises.
                with capturer.step(step, len(tokens)) as open_step:
                    for layer in capturer.shape.moe_layers:
                        capturer.capture(layer, router(tokens, layer))
                    open_step.publish(moetap.slots_of(BLOCKS, BLOCK_SIZE, tokens))
            except Exception as error:  # its tokens are sampled all the same
                print(f"worker: step {step}: {error}", file=sys.stderr)
            for failure in capturer.take_failures():
                print(f"worker: {failure}", file=sys.stderr)
        capturer.finalize(STEPS)
        print(f"worker: {STEPS} steps published. Press Enter to end.", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    run(*(sys.argv[1:] + ["device", "example"][len(sys.argv) - 1:]))
