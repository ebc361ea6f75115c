"""Where a run comes from: collected when it is started, and kept with it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner import __version__, private
from runner.planning.interpreter import find_python
from runner.profile.agreed import source_of
from runner.profile.leaks import hidden
from runner.protocol.requests import CodeState
from runner.runs.provenance import CodeKept, HostVersions, Provenance
from runner.runs.registry import KnownRun

if TYPE_CHECKING:
    from runner.hosts.facts import HostFacts
    from runner.hosts.link import Link
    from runner.planning.plan import Plan

_MOST = 1 << 20
"""Bytes of a file of git's that are read."""


def keep_origin(
    known: KnownRun,
    plan: Plan,
    facts: Sequence[HostFacts],
    first: Link,
    command: Sequence[str],
    environ: Mapping[str, str],
) -> None:
    """Keep where a run that is about to start comes from; what cannot be written costs nothing else.

    Args:
        facts: Of the hosts of the profile, in its order.
        first: The link to the first of them.
        command: The words that started the run.
    """
    profile = plan.profile
    files = [*([known.source] if known.source else []), *profile.sources]
    library = next(filter(None, (source_of(Path(file), environ) for file in files)), None)
    made = Provenance(
        version=__version__,
        python=platform.python_version(),
        command=tuple(map(hidden, command)),
        hosts=tuple(versions(plan, one, node) for node, one in enumerate(facts)),
        library=library.name if library else "",
        library_commit=commit_of(library.folder) if library and library.url else "",
    )
    with suppress(OSError):
        made.save(known.folder)
    # The answer comes while the ranks start: nobody waits for it.
    script = profile.job.target.value if profile.job.target.kind == "script" else None
    asked = first.submit("code", workdir=plan.hosts[0].workdir, script=script)
    asked.add_done_callback(lambda answer: _keep_code(answer, made, known, profile.hosts[0].name))


def _keep_code(answer: Future[CodeState], made: Provenance, known: KnownRun, host: str) -> None:
    if answer.cancelled() or answer.exception() is not None:
        return
    found = answer.result()
    code = CodeKept(host, found["folder"], found["head"], found["diff"], found["cut"], tuple(found["untracked"]))
    with suppress(OSError):
        made.with_code(code).save(known.folder)


def versions(plan: Plan, facts: HostFacts, node: int) -> HostVersions:
    """What will run on a host, and what it has."""
    host = plan.profile.hosts[node]
    _, found, _ = find_python(plan.profile, host, facts)
    return HostVersions(
        host.name, plan.hosts[node].python, found.version if found else "", (found.torch if found else "") or "", facts
    )


def commit_of(folder: Path) -> str:
    """The commit that a clone has checked out, from its files; empty where that is not known."""
    git = folder / ".git"
    try:
        head = _text(git / "HEAD").strip()
        if head.startswith("ref: refs/") and ".." not in head:
            name = head.removeprefix("ref: ")
            try:
                head = _text(git.joinpath(*name.split("/"))).strip()
            except FileNotFoundError:
                lines = _text(git / "packed-refs").splitlines()
                head = next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), "")
    except (OSError, ValueError):
        return ""
    return head if re.fullmatch("[0-9a-f]{40,64}", head) else ""


def _text(file: Path) -> str:
    return private.read(file, _MOST)[0].decode()
