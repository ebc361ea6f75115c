"""The one way this job ends on purpose: a line for the user, said once for all ranks."""

from __future__ import annotations


class Problem(Exception):
    """Something the user can correct, as one sentence with its cure.

    Args:
        text: What is wrong, where, and what to do about it.
        host_only: Whether only this host has it: then its own first rank says it, else rank 0 does for all.
        code: The exit code: 2 for bad input, 1 for a training that failed.
    """

    def __init__(self, text: str, *, host_only: bool = False, code: int = 2) -> None:
        super().__init__(text)
        self.host_only = host_only
        self.code = code
