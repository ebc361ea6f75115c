"""Which kind of file a text is, from its content alone."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["accelerate", "hostfile", "deepspeed", "sbatch"]

_SBATCH = re.compile(r"\A#!|^#SBATCH\b", re.MULTILINE)
_ACCELERATE = re.compile(
    r"""^[ \t{]*["']?(?:distributed_type|compute_environment|num_machines|machine_rank)["']?\s*:""", re.MULTILINE
)
_DEEPSPEED = re.compile(
    r'"(?:train_batch_size|train_micro_batch_size_per_gpu|zero_optimization|zero_allow_untested_optimizer'
    r'|gradient_accumulation_steps|gradient_clipping|optimizer|scheduler|bf16|fp16)"\s*:'
)
_PROFILE = re.compile(r"^disttui\s*:", re.MULTILINE)
_HOST = re.compile(r"\s*(?:#.*|[^\s:#{}\"',]+(?::\d+)?(?:\s+[\w-]+\s*=\s*[\w,.-]+)*\s*(?:#.*)?)?")


def recognise(text: str) -> Kind | Literal["profile"] | None:
    """The kind of a file; None where it is none of them."""
    if _SBATCH.search(text):
        return "sbatch"
    if _PROFILE.search(text):
        return "profile"
    if _ACCELERATE.search(text):
        return "accelerate"
    if text.lstrip().startswith("{") and _DEEPSPEED.search(text):
        return "deepspeed"
    lines = text.splitlines()
    if all(_HOST.fullmatch(line) for line in lines) and any(line.partition("#")[0].strip() for line in lines):
        return "hostfile"
    return None
