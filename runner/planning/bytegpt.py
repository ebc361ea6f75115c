"""Reads the options and model size of the built-in job from its arguments. No I/O; the job is in runner/train."""

from __future__ import annotations

from collections.abc import Sequence

from disttui.runner.train.options import Options, parse
from disttui.runner.train.problem import Problem

BYTES_PER_PARAMETER = 16
"""Model states with Adam: weight, gradient and two moments in fp32; also 16 in mixed precision (arXiv 1910.02054)."""

_VOCABULARY = 256


def problem(args: Sequence[str]) -> str | None:
    """Return why the job would reject these arguments, or None if it accepts them."""
    if {"-h", "--help"} & set(args):
        return "--help only prints the options and trains nothing"
    try:
        parse(args)
    except Problem as found:
        return str(found)
    return None


def read(args: Sequence[str]) -> Options:
    """Return the job's options, or its defaults if the arguments are invalid."""
    return parse(()) if problem(args) else parse(args)


def given(args: Sequence[str], option: str) -> bool:
    """Whether the arguments contain an option, such as `--backend`; its value is then not recommended."""
    return any(word.partition("=")[0] == option for word in args)


def parameters(options: Options) -> int:
    """Number of weights: 12 × width² per layer (attention 4, MLP 8), the norms, and the embedding and output tables."""
    norms = (2 * options.layers + 1) * options.width
    return 12 * options.layers * options.width**2 + 2 * _VOCABULARY * options.width + norms
