"""The histories of the C++ simulation, made again through the package.

`./dev soak python` runs more seeds than these.
"""

import os
import subprocess

import pytest
import replay

import moetap

PROGRAM = os.environ.get("MOETAP_SIMULATION")
FIRST = int(os.environ.get("MOETAP_FIRST_SEED", "1"))
SEEDS = int(os.environ.get("MOETAP_SEEDS", "25"))


@pytest.mark.skipif(PROGRAM is None, reason="MOETAP_SIMULATION does not name the simulation's program")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_history(seed: int) -> None:
    instance = f"replay-{os.getpid()}-{seed}"
    done = subprocess.run([PROGRAM, "--calls", str(seed)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    try:
        assert replay.replay(done.stdout.splitlines(), instance) > 100
    finally:
        left = [segment.name for segment in moetap.find_segments() if instance in segment.name]
        for name in left:
            moetap.reclaim(name)
    assert not left
