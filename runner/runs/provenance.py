"""provenance.json: where a run comes from, beside its run.json; written by the viewer that starts it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from disttui.runner import private
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.paths import inside
from disttui.runner.protocol.limits import CODE_DIFF, CODE_UNTRACKED
from disttui.runner.protocol.regular import read_regular
from disttui.runner.text.masking import masked
from disttui.runner.untrusted.decode import MalformedRecordError, build
from disttui.runner.untrusted.records import json_object

NAME = "provenance.json"
_LARGEST = 64 * 1024 * 1024
"""Bytes; the facts of 1,024 hosts are a tenth of it."""


@dataclass(frozen=True)
class HostVersions:
    """What ran on a host, and all that the probe found there before."""

    name: str = ""
    interpreter: str = ""
    python: str = ""
    torch: str = ""
    facts: HostFacts | None = None


@dataclass(frozen=True)
class CodeKept:
    """The job's code as it was: what was checked out, and what differed."""

    where: str = ""
    """The host that was asked: that of node rank 0; `this machine` for code that was sent."""
    folder: str = ""
    commit: str | None = None
    """None: in no git repository."""
    diff: Annotated[str, CODE_DIFF] = ""
    """Uncommitted changes, known secrets masked."""
    cut: bool = False
    """Whether there was more of them."""
    untracked: Annotated[tuple[str, ...], CODE_UNTRACKED] = ()
    branch: str = ""
    """Of code that was sent; empty: none, or not known."""
    tree: str = ""
    """The tree that was sent to the hosts; empty: the code lay there already."""


@dataclass(frozen=True)
class Provenance:
    """Everything about a run's start that its profile does not say."""

    version: str = ""
    """Of disttui."""
    python: str = ""
    """Of the viewer."""
    command: tuple[str, ...] = ()
    """Secrets masked."""
    hosts: Annotated[tuple[HostVersions, ...], 1024] = ()
    library: str = ""
    """The team library that the profile came from; empty: none."""
    library_commit: str = ""
    """What was checked out there; empty where it is no git repository."""
    code: CodeKept | None = None
    """None: not known, such as after a viewer that was killed at once."""

    def save(self, folder: Path) -> None:
        """Write it into a run's folder. Raises OSError."""
        private.replace(inside(folder, NAME), json.dumps({"disttui": 1, **asdict(self)}))

    def with_code(self, code: CodeKept) -> Provenance:
        """The same with the code, whose changes are masked."""
        return replace(self, code=replace(code, diff=masked(code.diff)))


def load_provenance(folder: Path) -> Provenance | None:
    """What is kept of a run; None where there is nothing that can be read."""
    try:
        return build(Provenance, json_object(read_regular(inside(folder, NAME), _LARGEST)))
    except (OSError, MalformedRecordError):
        return None
