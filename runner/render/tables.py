"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def fit(text: str, width: int) -> str:
    """A text whose lines are cut to a width; a cut line ends with `…`."""
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in text.split("\n"))


def table(head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head of (title, `<` or `>`); a column without any value is left out."""
    lines = [[title for title, _ in head], *rows]
    columns = [index for index in range(len(head)) if any(line[index] for line in lines)]
    widths = {index: max(len(line[index]) for line in lines) for index in columns}
    return "\n".join(
        "  ".join(f"{line[index]:{head[index][1]}{widths[index]}}" for index in columns).rstrip() for line in lines
    )
