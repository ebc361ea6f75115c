"""Plain English: phrases that mean nothing to a newcomer, in all that a person reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = (
    "runner", "tui", "disttui", "docs", "examples", "profiles", "README.md", "CONTRIBUTING.md", "SECURITY.md",
    "CHANGELOG.md",
)  # fmt: skip
PATTERN = re.compile(
    "|".join(
        (
            r"\b(?:somebody|whoever|thereby|whose word|once more|in turns|at hand|all the same|put together)\b",
            r"\b(?:for nobody|without end|without a word|h[eo]ld against|not heard of)\b",
            r"\b(?:go|goes|going|went|gone) on\b(?! (?:to|with|in|at|a|the)\b)",
            r"\bgets? on\b(?! (?:to|the|a)\b)",
            r"\b(?:waits?|waiting|queued|is|are|of|runs) in line\b(?! with)",
            r"\bof which it is said\b|\bwhat is said of\b|\bas is said\b|\bthere is none\b",
            r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b)[a-z]+",
            r", too[.,;:]",
            r"\bhand(?:s|ed)? (?:it |them )?on to\b",
            r"\b(?:by|of|to) whom\b|\b(?:so that who|such that)\b|\bhears? of\b|\bto nobody\b",
            r"\b(?:out of|no longer in) line\b|\bgone without\b|\bgoes nowhere\b|\bno such place\b|\bcounts? as no\b",
            r"\b\d+ to know\b|\bfewer words\b|\bleft the run going\b|\bas it was run then\b|\b[Nn]othing brings\b",
            r"\b(?:for ever|by itself|meanwhile|upon|is none|a yes|is heard|the word)\b",
            r"(?<![.-])(?<!if )\banew\b(?!=|: bool)",  # not the parameter
            r"\bstands? (?:in|at|for|there|here)\b|(?:^|[.:] )Who [a-z]+s\b",
        )
    )
)


def found_in(text: str) -> list[str]:
    """The phrases of `text`, each with what stands around it; a phrase may run over the end of a line."""
    flat = re.sub(r"\s*\n\s*(?:#:? |[*>] )?", " ", text)
    return [f"…{flat[max(0, match.start() - 50) : match.end() + 30]}…" for match in PATTERN.finditer(flat)]


@pytest.mark.parametrize("place", READ)
def test_text_is_free_of_dialect(place: str) -> None:
    everything = (ROOT / place, *(ROOT / place).rglob("*"))
    paths = [path for path in everything if path.suffix in (".py", ".md", ".yaml") and "__pycache__" not in path.parts]
    assert paths
    found = [f"{path.relative_to(ROOT)}: {phrase}" for path in paths for phrase in found_in(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["It goes\n    # on.", "It waits, too.", "It stands\n# in a file"])
def test_dialect_is_noticed(text: str) -> None:
    assert found_in(text)
