"""The ways in which an engine is run: which path its rows take, and what else happens. Needs no package."""

from dataclasses import dataclass

# What each path is, and the package of what gives the scheduler its rows.
PATHS = {
    "none": ("no routed experts", "builtins."),
    "theirs": ("vLLM's own path", "vllm."),
    "device": ("moetap, device transport", "moetap."),
    "shm": ("moetap, shm transport", "moetap."),
    "wire-read": ("vLLM's worker writes its buffer, and moetap reads it", "moetap_cpu_hook."),
    "wire-write": ("moetap writes vLLM's buffer, and vLLM's scheduler reads it", "vllm."),
}
OPTIONS = {
    "async": "a step is scheduled while the one before it runs",
    "config": "asked for by additional_config, and not by the environment",
    "drafts": "n-gram drafts",
    "kill": "the worker is killed when a third of the requests are done",
    "resets": "the prefix cache is dropped now and then, with requests running",
    "stream": "each output has only the tokens since the one before it",
    "tp2": "two tensor-parallel ranks",
    "uni": "worker and scheduler in one process",
}
# Of each version those that it has on a CPU.
DEFAULT = {
    "0.32.0": ("none", "theirs", "device", "shm", "theirs+uni", "device+uni", "shm+uni", "device+config+uni",
               "device+drafts+stream", "device+resets+uni", "device+async", "device+async+drafts",
               "device+async+resets+uni", "device+kill", "shm+kill"),
    "0.18.1": ("none", "theirs", "device", "shm", "theirs+uni", "device+uni", "shm+uni", "shm+config+uni",
               "device+resets+uni", "device+async", "device+stream+tp2", "wire-read", "wire-write", "device+kill",
               "shm+kill", "wire-read+kill", "wire-write+kill"),
}


@dataclass(frozen=True)
class Way:
    """One of PATHS with some of OPTIONS."""

    path: str
    options: frozenset[str]
    name: str

    @staticmethod
    def parse(text: str) -> "Way":
        path, *options = text.split("+")
        if path not in PATHS or not set(options) <= OPTIONS.keys():
            raise ValueError(f"no way '{text}'; there is {', '.join(PATHS)}, with +{', +'.join(OPTIONS)}")
        return Way(path, frozenset(options), text)

    @property
    def words(self) -> str:
        return "; ".join([PATHS[self.path][0], *(OPTIONS[option] for option in OPTIONS if option in self.options)])
