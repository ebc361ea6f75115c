"""`disttui pull`: a run's checkpoints and results to here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, BinaryIO

from runner.commands.stop import refuse_sandbox
from runner.errors import DisttuiError, HostError, InputError
from runner.run.history import KnownRun
from runner.run.link import GONE, Link
from runner.run.remote import reach
from runner.show.numbers import amount, gibibytes
from runner.text import clean
from runner.transport import Connector

Say = Callable[[str], None]
_PART = ".part"


def pull(run: KnownRun, connector: Connector, to: Path, say: Say) -> int:
    """Copy what the run has left on its hosts; what is here already is not fetched again, what is half here goes on.

    Raises:
        DisttuiError: A host cannot be reached, a file changed while it was read, or there is no room.
    """
    refuse_sandbox(run)
    total = count = 0
    with reach(run, connector) as reached:
        reached.refuse_none()
        for error in reached.errors.values():
            say(f"{error.what}; its files are left out")
        taken: dict[str, Mapping[str, Any]] = {}
        for node, answer in sorted(reached.ask("files", **run.request()).items()):
            host = run.hosts[node].name
            if isinstance(answer, DisttuiError):
                say(answer.what)
                continue
            for file in answer["files"]:
                name = _checked(host, str(file["name"]))
                if taken.get(name) == file:
                    continue  # the same disk, seen from another host
                # Hosts that have each a file of this name keep apart.
                path = to / (name if name not in taken else f"{host}/{name}")
                taken.setdefault(name, file)
                if _whole(path, file):
                    continue
                total += _fetch(reached.links[node], run, node, name, path, file)
                count += 1
                say(f"{path} ({gibibytes(int(file['size']))} from {host})")
    if not taken:
        say(f"{run.run} has left no checkpoints or results on its hosts")
    elif not count:
        say(f"{to}: {amount(len(taken), 'file')} here already, nothing is new")
    else:
        say(f"{to}: {amount(count, 'file')}, {gibibytes(total)} fetched, checksums are right")
    return 3 if reached.errors else 0


def _fetch(link: Link, run: KnownRun, node: int, name: str, path: Path, file: Mapping[str, Any]) -> int:
    part = path.with_name(path.name + _PART)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as out:
            begun = out.tell()
            answer = _receive(link, run, node, name, out, begun)
        if answer["size"] != part.stat().st_size or answer["sha256"] != _digest(part):
            part.unlink()
            raise HostError(link.host, f"{clean(name)} changed while it was read", "Pull again.")
        os.utime(part, (float(file["mtime"]), float(file["mtime"])))
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Make room, or pull elsewhere with --to.") from None
    return int(answer["size"]) - begun


def _receive(link: Link, run: KnownRun, node: int, name: str, out: BinaryIO, begun: int) -> Mapping[str, Any]:
    failed: list[OSError] = []

    def take(item: Any) -> None:
        try:
            if isinstance(item, tuple) and not failed:
                out.write(item[3])
        except OSError as error:
            failed.append(error)

    future = link.stream("fetch", take, **run.request(), node_rank=node, name=name, offset=begun)
    while True:
        try:
            answer: Mapping[str, Any] = future.result(1.0)
        except FutureTimeout:
            if link.silence > GONE or failed:
                raise failed[0] if failed else HostError(link.host, "not seen any more", "Pull again later.") from None
            continue
        if failed:
            raise failed[0]
        return answer


def _whole(path: Path, file: Mapping[str, Any]) -> bool:
    try:
        seen = path.stat()
    except OSError:
        return False
    return seen.st_size == file["size"] and abs(seen.st_mtime - float(file["mtime"])) < 1e-3


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _checked(host: str, name: str) -> str:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise HostError(host, f"it names a file {clean(name)!r}", "Do not trust this host.")
    return name
