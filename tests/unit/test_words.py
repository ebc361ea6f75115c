"""Plain English: phrases that mean nothing to a newcomer, in all that a person reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = ("runner", "tui", "disttui", "docs", "examples", "profiles", "README.md", "CONTRIBUTING.md", "SECURITY.md")
PATTERN = re.compile(
    "|".join(
        (
            r"\b(?:somebody|whoever|thereby|whose word|once more|in turns|at hand|all the same|put together)\b",
            r"\b(?:for nobody|without end|without a word|h[eo]ld against|not heard of|is heard of)\b",
            r"\b(?:go|goes|going|went|gone) on\b(?! (?:to|with|in|at|a|the)\b)",
            r"\bgets? on\b(?! (?:to|the|a)\b)",
            r"\b(?:stands?|waits?|waiting|queued|is|are|of|runs) in line\b(?! with)",
            r"\bof which it is said\b|\bwhat is said of\b|\bas is said\b|\bthere is none\b",
            r"(?<!here )\b(?:is|are|was|were) no (?!more|longer|other|such|one\b)[a-z]+[.,:;'\"`]",
            r"\bmeanwhile[.;,\"]",
            r", too[.,;:]",
            r"\bhand(?:s|ed)? (?:it |them )?on to\b",
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


@pytest.mark.parametrize("text", ["It goes\n    # on.", "It waits, too.", "somebody waits in line"])
def test_dialect_is_noticed(text: str) -> None:
    assert found_in(text)
