"""The exception for failures that a request to the node program reports to its user."""

from __future__ import annotations


class Problem(Exception):
    """Something that the user can correct: what is wrong on this host, and the cure."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure
