"""A scheduler: reports its decisions to a Ledger, and reads a request's routes when it ends.

    python scheduler.py [device|shm] [instance]
"""

import sys

from common import BLOCK_SIZE, BLOCKS, PROMPT, ROWS, STEPS, make_endpoint, tokens_of

import moetap

REQUEST = 1


def run(transport: str, instance: str) -> None:
    endpoint = make_endpoint(instance)
    ledger = moetap.Ledger(endpoint.num_slots // BLOCK_SIZE, BLOCK_SIZE)
    with moetap.Reader(endpoint, "shm" if transport == "shm" else "device") as reader:
        ledger.admit(REQUEST, num_tokens=PROMPT, blocks=BLOCKS)
        for step in range(1, STEPS + 1):
            ledger.schedule(step, REQUEST, tokens_of(step))
            try:
                reader.wait_for(step)
            except moetap.StepFailed as failed:  # its tokens are sampled all the same
                print(f"scheduler: {failed}")
            ledger.accept(step, REQUEST, num_tokens=tokens_of(step).stop + 1)

        # The rows of all tokens but the last one. If a block got other tokens meanwhile, they say so.
        routes = moetap.read_rows(reader, ledger.finish(REQUEST, num_tokens=ROWS + 1))
    if not routes.all_present:
        print(f"scheduler: {routes.count(moetap.RowState.missing)} of {len(routes)} rows are missing")
        return
    prompt, output = routes.split(PROMPT)
    print(f"scheduler: {len(routes)} rows, all present: {len(prompt)} of the prompt, {len(output)} of the output")
    print(f"scheduler: experts of the first token at the first layer: {prompt.ids[0, 0].tolist()}")
    print(f"scheduler: the output's routes as base64 of a .npy file: {output.to_npy_base64('uint8')[:40]}...")


if __name__ == "__main__":
    run(*(sys.argv[1:] + ["device", "example"][len(sys.argv) - 1:]))
