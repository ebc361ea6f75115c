"""What the built-in job's arguments say about its size, without starting it. Pure; the job is in runner/train."""

from __future__ import annotations

from collections.abc import Sequence

from disttui.runner.train.options import Options, parse
from disttui.runner.train.problem import Problem

BYTES_PER_PARAMETER = 16
"""Model states with Adam: weight, gradient, two moments in fp32; in mixed precision 16 as well (arXiv 1910.02054)."""

_VOCABULARY = 256


def problem(args: Sequence[str]) -> str | None:
    """Why the job would refuse these arguments, None where it would not."""
    if {"-h", "--help"} & set(args):
        return "--help only prints the options and trains nothing"
    try:
        parse(args)
    except Problem as found:
        return str(found)
    return None


def read(args: Sequence[str]) -> Options:
    """The job's options; its defaults where the arguments are wrong."""
    return parse(()) if problem(args) else parse(args)


def given(args: Sequence[str], option: str) -> bool:
    """Whether the arguments settle an option themselves, so that nothing needs to be recommended."""
    return any(word.partition("=")[0] == option for word in args)


def parameters(options: Options) -> int:
    """Weights: 12 × width² a layer (attention 4, network 8), the norms, and the bytes' table at both ends."""
    norms = (2 * options.layers + 1) * options.width
    return 12 * options.layers * options.width**2 + 2 * _VOCABULARY * options.width + norms
