"""Settings of the whole run that are one of a few words: where each stands in the profile, and what the words mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

from runner.profile.sections import Backend, Launcher, Precision, Strategy
from tui.wizard.draft import Draft


class Setting(NamedTuple):
    """A setting."""

    path: tuple[str, ...]
    """Its key in the profile."""
    words: tuple[str, ...]
    """Its values, the default first."""
    meaning: str = ""
    """What the values do; empty: the plan's reason says it."""


SETTINGS: Mapping[str, Setting] = {
    "backend": Setting(("launch", "backend"), get_args(Backend)),
    "strategy": Setting(
        ("parallel", "strategy"), get_args(Strategy),
        "ddp: a whole model per rank; fsdp: one model sharded over all ranks; hsdp: sharded inside each host, a copy "
        "per host.",
    ),
    "precision": Setting(
        ("precision",), get_args(Precision),
        "fp32: full precision; bf16: for GPUs of compute capability 8.0 or more; fp16: for older ones, loss scaled.",
    ),
    "launcher": Setting(("launch", "launcher"), get_args(Launcher)),
}  # fmt: skip
FOR_THE_JOB = ("strategy", "precision")
"""Settings that only some jobs get: see `Draft.divides_job`."""


def chosen(draft: Draft, key: str) -> str:
    """The value in the draft, or the default."""
    path, words, _ = SETTINGS[key]
    inner: object = draft.data
    for part in path:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, str) and inner in words else words[0]


def with_choice(draft: Draft, key: str, word: str) -> Draft:
    """The draft with another value, without what does not reach the job any more; the default stands for itself."""
    path, words, _ = SETTINGS[key]
    return draft.put(path, None if word == words[0] else word).without_idle()
