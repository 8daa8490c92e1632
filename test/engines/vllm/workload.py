"""Requests that make a small engine do all that can go wrong with routes."""

from dataclasses import dataclass

import numpy as np

from tiny_model import VOCABULARY


@dataclass(frozen=True)
class Job:
    """One request."""

    name: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    start: int  # routed_experts_prompt_start
    arrives: int  # before this step of the engine
    aborted_after: int | None  # tokens of output


def make_jobs(count: int, seed: int) -> list[Job]:
    """Prompts that share beginnings (prefix hits), are longer than a step (chunks), and repeat
    themselves (n-gram drafts); more of them at once than the cache has room for (preemptions)."""
    random = np.random.default_rng(seed)
    stems = [random.integers(0, VOCABULARY, 96).tolist() for _ in range(4)]
    jobs = []
    for number in range(count):
        stem = stems[number % len(stems)]
        tail = random.integers(0, VOCABULARY, int(random.integers(4, 60))).tolist()
        prompt = stem[: int(random.choice([0, 32, 64, 96]))] + tail
        if number % 3 == 0:
            prompt += prompt[-12:]
        jobs.append(
            Job(
                name=f"job-{number}",
                prompt=prompt,
                max_tokens=int(random.integers(8, 80)),
                temperature=0.0 if number % 2 else 0.8,
                seed=number,
                start=0 if number % 4 else int(random.integers(0, len(prompt) + 1)),
                arrives=number // 3,
                aborted_after=int(random.integers(1, 8)) if number % 7 == 3 else None,
            )
        )
    return jobs
