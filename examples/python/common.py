"""What the example programs share. An engine's processes get it from its configuration."""

import moetap

BLOCK_SIZE = 16
BLOCKS = [3, 7, 5, 2]  # of one request's KV cache, in this order
PROMPT = 40
STEPS = 25
ROWS = PROMPT + STEPS - 1  # the last sampled token is not run through the model


def make_endpoint(instance: str) -> moetap.Endpoint:
    """Worker and scheduler make the same."""
    shape = moetap.ModelShape.uniform(num_layers=4, top_k=2, num_experts=16)
    return moetap.Endpoint(instance, shape, num_slots=8 * BLOCK_SIZE, max_tokens=64)


def tokens_of(step: int) -> range:
    """The first step runs the prompt, each other one the token that was sampled before it."""
    last = PROMPT + step - 1
    return range(0 if step == 1 else last - 1, last)
