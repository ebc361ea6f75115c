"""Profiles and facts for the tests of recommend, preflight and plan: YAML as a user writes it, hosts as JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning.plan import Plan, make_plan
from disttui.runner.planning.preflight import Finding, check
from disttui.runner.planning.recommend import Recommendation, recommend
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import Profile

FOLDER = Path(__file__).parents[1] / "data" / "facts"
TRAIN_ZIP = "~/.cache/disttui/train-0123456789abcdef.zip"


def facts(name: str, **changes: Any) -> HostFacts:
    """One of the files in tests/data/facts, with some fields replaced."""
    return replace(HostFacts.from_json(json.loads((FOLDER / f"{name}.json").read_text())), **changes)


@dataclass(frozen=True)
class Planned:
    """Everything about one profile on some hosts."""

    profile: Profile
    facts: tuple[HostFacts, ...]
    recommendation: Recommendation
    plan: Plan
    findings: tuple[Finding, ...]

    def advice(self) -> str:
        """All warnings as one text."""
        return "\n".join(f"{one.host}: {one.text}" for one in self.recommendation.warnings)

    def found(self, level: str) -> list[str]:
        """`host: what → cure` of every finding of a level."""
        return [f"{one.host}: {one.what} → {one.cure}" for one in self.findings if one.level == level]


def planned(
    *found: HostFacts,
    hosts: list[dict[str, Any]] | None = None,
    job: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    **rest: Any,
) -> Planned:
    """Plan a profile for hosts with these facts; `hosts` adds per-host keys, `rest` top-level ones."""
    extra = hosts or [{} for _ in found]
    data = {
        "disttui": 1,
        "name": "test",
        "hosts": [{"host": f"node{rank + 1}", **one} for rank, one in enumerate(extra)],
        "job": job or {"builtin": "bytegpt"},
        **rest,
    }
    profile = parse(json.dumps(data), "test.yaml")
    recommendation = recommend(profile, found)
    plan = make_plan(profile, found, recommendation, TRAIN_ZIP)
    return Planned(profile, found, recommendation, plan, check(profile, found, plan, environ or {}))
