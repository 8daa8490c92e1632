"""left.py INSTANCE: prints what an engine that ended left in shared memory, as a JSON object: at once, and
after the next worker started. Removes the rest. Run by report.py, as the engine's processes must be gone."""

import json
import sys
import tempfile
from pathlib import Path

import moetap


def names(instance: str) -> list[str]:
    return [segment.name for segment in moetap.find_segments() if instance in segment.name]


def start_another(instance: str) -> None:
    """A worker of another engine, in each layout."""
    shape = moetap.ModelShape.uniform(num_layers=1, top_k=1, num_experts=2)
    for layout in ("native", "wire"):
        endpoint = moetap.Endpoint(f"after-{instance}", shape, num_slots=1, max_tokens=1, shm_layout=layout)
        moetap.Capturer(endpoint, "host", transport="shm").close()


def main() -> None:
    (instance,) = sys.argv[1:]
    left = names(instance)
    start_another(instance)
    print(json.dumps({"left": left, "left_later": names(instance)}))
    for file in [*Path("/dev/shm").glob(f"*{instance}*"), *Path(tempfile.gettempdir()).glob(f"vllm_*{instance}*")]:
        file.unlink()


if __name__ == "__main__":
    main()
