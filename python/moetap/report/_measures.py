"""Figures of the load of a layer's experts, and of how far two loads are apart.

Each takes picks [layers][experts] in which every layer has at least one pick, and gives one figure
per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moetap.report._files import Ids

Floats = npt.NDArray[np.float64]


def shares(picks: Ids) -> Floats:
    """The part of its layer's picks that each expert has, 0 to 1."""
    return np.asarray(picks / picks.sum(axis=1, keepdims=True), dtype=np.float64)


def load(picks: Ids) -> Floats:
    """Each expert's picks as a multiple of the layer's mean: 1 if all experts have equally many."""
    return np.asarray(shares(picks) * picks.shape[1], dtype=np.float64)


def top_count(num_experts: int) -> int:
    """How many experts `top_share` is of: a tenth of them, rounded up."""
    return -(-num_experts // 10)


@dataclass(frozen=True)
class Imbalance:
    """How unevenly each layer's picks lie on its experts."""

    max_load: Floats  # the hottest expert's load: 1 is even
    hottest: Ids  # its id; the lowest if several are
    variation: Floats  # standard deviation of the experts' picks over their mean: 0 is even
    entropy: Floats  # Shannon's, over that of an even load: 1 is even, 0 is one expert for all
    top_share: Floats  # part of the picks that the hottest tenth of the experts has
    dead: Ids  # experts without a pick


def imbalance(picks: Ids) -> Imbalance:
    p, times = shares(picks), load(picks)
    num_experts = picks.shape[1]
    tenth = np.sort(p, axis=1)[:, num_experts - top_count(num_experts) :]
    return Imbalance(
        max_load=times.max(axis=1),
        hottest=picks.argmax(axis=1),
        variation=times.std(axis=1),
        entropy=entropy(p) / np.log2(num_experts) if num_experts > 1 else np.ones(len(p)),
        top_share=tenth.sum(axis=1),
        dead=(picks == 0).sum(axis=1),
    )


def entropy(p: Floats) -> Floats:
    """Shannon entropy of each row's distribution, in bits."""
    return np.asarray(-(p * np.log2(np.where(p > 0, p, 1.0))).sum(axis=1), dtype=np.float64)


def js_distance(a: Ids, b: Ids) -> Floats:
    """Jensen-Shannon distance of two loads: the root of the divergence in bits, 0 to 1."""
    p, q = shares(a), shares(b)
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)), dtype=np.float64)


def js_noise(a: Ids, b: Ids) -> Floats:
    """What js_distance() is about, if both were drawn from one load and all picks independently.

    The divergence of two samples is about (experts - 1) / (8 ln 2) * (1 / picks of a + 1 / picks
    of b) bits: its second-order term, whose sum of squares is chi-squared. Experts that neither run
    picked are left out. Picks of neighbouring tokens are alike, so real noise is larger.
    """
    experts = ((a + b) > 0).sum(axis=1)
    per_pick = 1 / a.sum(axis=1) + 1 / b.sum(axis=1)
    return np.asarray(
        np.sqrt(np.clip((experts - 1) / (8 * np.log(2)) * per_pick, 0.0, 1.0)), dtype=np.float64
    )
