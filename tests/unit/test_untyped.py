"""Parsed JSON is `dict[str, Any]` where it comes in, and nowhere else: inside, everything has a type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
EDGES = {
    "runner/untrusted/records.py": "from bytes to parsed JSON, and to bounded values",
    "runner/hosts/answers.py": "answers to requests",
    "runner/hosts/facts.py": "answers of a probe",
    "runner/hosts/link.py": "frames of a host",
    "runner/runs/registry.py": "run.json and seen.json",
    "runner/runs/summary.py": "summaries of runs",
    "runner/train/index.py": "the index of a checkpoint",
    "runner/profile/load.py": "profiles as YAML has them",
    "runner/profile/save.py": "profiles as YAML has them",
    "runner/profile/schema.py": "profiles as YAML has them",
    "runner/cli/mcp.py": "requests of a client",
    "runner/transport/guarded.py": "paramiko's attributes",
    "runner/node/observe/reports.py": "what scripts write into the files of their run",
    "runner/node/gang/leader.py": "messages of other hosts",
    "runner/node/gang/link.py": "messages of other hosts",
    "runner/node/gang/messages.py": "messages of other hosts",
    "runner/node/notify.py": "its own journal, and what receivers are sent",
    "runner/node/child.py": "whatever tasks that run side by side return",
    "runner/train/checkpoint.py": "torch's states",
    "runner/train/keeper.py": "torch's states",
    "runner/train/options.py": "argparse's namespace",
    "runner/train/peers.py": "what the ranks of other hosts have measured",
    "runner/train/smoke.py": "what a rank measures, on its way into JSON",
    "runner/train/state.py": "torch's states",
    "runner/user/config.py": "the user's configuration",
    "tui/wizard/draft.py": "profiles that are being written",
    "tui/wizard/job.py": "profiles that are being written",
}
"""Module → what comes in there."""


def _untyped(path: Path) -> Iterator[int]:
    """Yield the lines of annotations such as `dict[str, Any]` and `Mapping[str, Any]`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            name = ast.unparse(node.value).rpartition(".")[2]
            if name in ("dict", "Dict", "Mapping", "MutableMapping") and ast.unparse(node.slice) == "(str, Any)":
                yield node.lineno


def test_untyped_objects_stay_at_the_edges() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(_untyped(path))
        for folder in ("runner", "tui")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert not [name for name in EDGES if not found.get(name)], "an edge that has none any more: strike it off the list"
    inside = {name: lines for name, lines in found.items() if lines and name not in EDGES}
    listed = "\n".join(f"{name}: {', '.join(map(str, lines))}" for name, lines in inside.items())
    assert not inside, f"untyped objects outside of the edges:\n{listed}"
