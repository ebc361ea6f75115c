"""docs/profile.md lists every key of a profile and every variable, as they are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from disttui.runner.node.host import HostPart
from tests.profile_table import INSIDE, OF_DISTTUI, OF_RANKS, PAGE, SECTIONS, docstrings, page

ROOT = Path(__file__).parents[2]


def test_the_page_of_keys_is_what_the_schema_says() -> None:
    for model in SECTIONS.values():
        missing = model.model_fields.keys() - docstrings(model).keys()
        assert not missing, f"{model.__name__}: no docstring under {', '.join(missing)}"
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.profile_table writes it anew"


def test_the_page_lists_the_variables_that_a_rank_gets() -> None:
    spec: Any = {
        "run": "x",
        "node_rank": 0,
        "env": {},
        "python": "python3",
        "activate": "",
        "launch": {"instrument": True},
        "resume_from": "/c",
    }
    added = {
        name.decode()
        for name in HostPart(spec, "/r/x/0", "", None, {}, 0o22).environment(2)
        if name.startswith(b"DISTTUI_") and name not in os.environb
    }
    assert added | {"DISTTUI_METRICS"} == OF_RANKS.keys()


def test_every_variable_of_disttui_is_listed() -> None:
    sources = [
        path.read_text(encoding="utf-8") for folder in ("runner", "tui") for path in (ROOT / folder).rglob("*.py")
    ]
    used = {name for text in sources for name in re.findall(r"\bDISTTUI_[A-Z]+(?:_[A-Z]+)*\b", text)}
    assert used - INSIDE == OF_RANKS.keys() | OF_DISTTUI.keys()
