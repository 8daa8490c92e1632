"""The other end of the wire-compatible layout, as a vLLM process does it: plain Python, one int32
buffer [slot][hidden layer][top_k] in shared memory, dense layers too, an exclusive flock on a file
around each access. It captures as vLLM does: a step's ids go to a buffer of zeros by model layer,
of which whole rows are saved.

Reads commands from standard input, one a line, and answers each with one line.
"""
import fcntl
import os
import struct
import sys
import tempfile
from multiprocessing import resource_tracker, shared_memory

instance = sys.argv[1]
dp_rank, num_slots, hidden_layers, top_k = map(int, sys.argv[2:6])
row_ids = hidden_layers * top_k
size = num_slots * row_ids * 4
lock_path = os.path.join(tempfile.gettempdir(), f"vllm_routed_experts_{instance}_{dp_rank}.lock")
name = f"vllm_routed_experts_buffer_{instance}_{dp_rank}"


class Locked:
    def __init__(self, flags=fcntl.LOCK_EX):
        self.flags = flags

    def __enter__(self):
        self.file = open(lock_path, "ab")
        fcntl.flock(self.file, self.flags)

    def __exit__(self, *_):
        fcntl.flock(self.file, fcntl.LOCK_UN)
        self.file.close()


def create_or_attach():
    with Locked():
        try:
            shm = shared_memory.SharedMemory(name=name, create=True, size=size)
            shm.buf[:] = bytes(size)
        except FileExistsError:
            shm = shared_memory.SharedMemory(name=name, create=False)
    return shm


def row(slot):
    return slice(slot * row_ids * 4, (slot + 1) * row_ids * 4)


def run(command, shm):
    verb, *numbers = command.split()
    numbers = [int(n) for n in numbers]
    if verb == "size":
        return str(shm.size)
    if verb == "write":  # slot, then the row
        with Locked():
            shm.buf[row(numbers[0])] = struct.pack(f"{row_ids}i", *numbers[1:])
        return "done"
    if verb == "capture":  # slot, then for each layer that has a router: its id, top_k ids
        step = [0] * row_ids
        for at in range(1, len(numbers), 1 + top_k):
            layer = numbers[at]
            step[layer * top_k:(layer + 1) * top_k] = numbers[at + 1:at + 1 + top_k]
        with Locked():
            shm.buf[row(numbers[0])] = struct.pack(f"{row_ids}i", *step)
        return "done"
    if verb == "layer":  # slot, layer
        with Locked():
            ids = struct.unpack(f"{row_ids}i", shm.buf[row(numbers[0])])
        return " ".join(map(str, ids[numbers[1] * top_k:(numbers[1] + 1) * top_k]))
    if verb == "read":  # slot
        with Locked():
            return " ".join(map(str, struct.unpack(f"{row_ids}i", shm.buf[row(numbers[0])])))
    if verb == "try":
        try:
            with Locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                return "free"
        except BlockingIOError:
            return "held"
    return f"unknown command {verb}"


shm = create_or_attach()
# The tracker would remove the buffer when this process ends, also under the other one's feet.
resource_tracker.unregister(shm._name, "shared_memory")
print("ready", flush=True)
for line in sys.stdin:
    print(run(line, shm), flush=True)
shm.close()
