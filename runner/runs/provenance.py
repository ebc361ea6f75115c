"""provenance.json: where a run comes from, beside its run.json; written by the viewer that starts it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner import private
from runner.hosts.facts import HostFacts
from runner.paths import inside
from runner.protocol.limits import CODE_DIFF, CODE_UNTRACKED
from runner.protocol.regular import open_regular
from runner.text.masking import masked
from runner.untrusted.records import json_object

NAME = "provenance.json"
_LARGEST = 64 * 1024 * 1024
"""Bytes; the facts of 1,024 hosts are a tenth of it."""
_MOST_HOSTS, _MOST_WORDS, _LONGEST = 1024, 1000, 4096


@dataclass(frozen=True)
class HostVersions:
    """What ran on a host, and all that the probe found there before."""

    name: str
    interpreter: str = ""
    python: str = ""
    torch: str = ""
    facts: HostFacts | None = None


@dataclass(frozen=True)
class CodeKept:
    """The job's code as it was: what was checked out, and what differed."""

    where: str
    """The host that was asked: that of node rank 0."""
    folder: str
    commit: str | None = None
    """None: in no git repository."""
    diff: str = ""
    """Uncommitted changes, known secrets masked."""
    cut: bool = False
    """Whether there was more of them."""
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """Everything about a run's start that its profile does not say."""

    version: str
    """Of disttui."""
    python: str
    """Of the viewer."""
    command: tuple[str, ...]
    """Secrets masked."""
    hosts: tuple[HostVersions, ...]
    library: str = ""
    """The team library that the profile came from; empty: none."""
    library_commit: str = ""
    """What was checked out there; empty where it is no git repository."""
    code: CodeKept | None = None
    """None: not known, such as after a viewer that was killed at once."""

    def save(self, folder: Path) -> None:
        """Write it into a run's folder. Raises OSError."""
        part = inside(folder, f"{NAME}.{os.getpid()}.part")
        private.write(part, json.dumps({"disttui": 1, **asdict(self)}))
        part.replace(inside(folder, NAME))

    def with_code(self, code: CodeKept) -> Provenance:
        """The same with the code, whose changes are masked."""
        return replace(self, code=replace(code, diff=masked(code.diff)))


def load_provenance(folder: Path) -> Provenance | None:
    """What is kept of a run; None where there is nothing that can be read."""
    try:
        with open_regular(inside(folder, NAME)) as file:
            data = json_object(file.read(_LARGEST))
    except OSError:
        return None
    if data is None:
        return None
    hosts, code = data.get("hosts"), data.get("code")
    words = data.get("command")
    return Provenance(
        version=_text(data, "version"),
        python=_text(data, "python"),
        command=tuple(str(word)[:_LONGEST] for word in words[:_MOST_WORDS]) if isinstance(words, list) else (),
        hosts=tuple(_host(one) for one in hosts[:_MOST_HOSTS] if isinstance(one, dict))
        if isinstance(hosts, list)
        else (),
        library=_text(data, "library"),
        library_commit=_text(data, "library_commit"),
        code=_code(code) if isinstance(code, dict) else None,
    )


def _host(data: Mapping[str, object]) -> HostVersions:
    facts = None
    with suppress(ValueError, AttributeError, TypeError):
        found = data.get("facts")
        facts = HostFacts.from_json(found) if isinstance(found, dict) else None
    return HostVersions(
        _text(data, "name"), _text(data, "interpreter"), _text(data, "python"), _text(data, "torch"), facts
    )


def _code(data: Mapping[str, object]) -> CodeKept:
    diff, names = data.get("diff"), data.get("untracked")
    return CodeKept(
        where=_text(data, "where"),
        folder=_text(data, "folder"),
        commit=_text(data, "commit") or None,
        diff=diff[:CODE_DIFF] if isinstance(diff, str) else "",
        cut=data.get("cut") is True,
        untracked=tuple(str(name)[:_LONGEST] for name in names[:CODE_UNTRACKED]) if isinstance(names, list) else (),
    )


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    return value[:_LONGEST] if isinstance(value, str) else ""
