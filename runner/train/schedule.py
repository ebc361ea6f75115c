"""The learning rate of every step: scaled once, warmed up, then down a cosine."""

from __future__ import annotations

import math


def scale_lr(lr: float, rule: str, ranks: int) -> float:
    """Scale a learning rate found on one rank to `ranks` ranks, each of which adds its own batch.

    `linear` is Goyal et al. 2017 (arXiv 1706.02677), derived for SGD; `sqrt` is Malladi et al. 2022
    (arXiv 2205.10287), derived for Adam.
    """
    return lr * {"none": 1.0, "linear": float(ranks), "sqrt": math.sqrt(ranks)}[rule]


def lr_at(step: int, *, peak: float, steps: int, warmup: int, min_ratio: float) -> float:
    """Learning rate of the step after `step` finished ones: linear warm-up, then cosine to `min_ratio` × peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
