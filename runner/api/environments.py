"""The Python environments of `job.environment`: reads their files, and has hosts find or build them."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.api.carrying import RunCode, code_store, content, meeting_addresses
from disttui.runner.api.library import check_shared
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.hosts.facts import HostFacts, facts_of
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import Tell, probe_request, side_by_side
from disttui.runner.paths import inside
from disttui.runner.planning.interpreter import find_python, has_environment
from disttui.runner.profile.problems import printable
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol import tree
from disttui.runner.protocol.names import WHEELS
from disttui.runner.protocol.requests import EnvironmentAnswer
from disttui.runner.runs.remote import stream_all
from disttui.runner.sync.transfer import TreeParcel, send
from disttui.runner.sync.wheels import download

_MAIN = ("uv.lock", "requirements.txt", "environment.yml")
_MOST, _MOST_FILES = 3 << 20, 64
"""Most bytes of all files, and most files."""
_REFERS = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s+|=|(?=[^\s-]))(\S+)")
_LOCAL = re.compile(r"(-e|--editable)\b|\.{0,2}/|\.$|file:|.+@\s*file:")
_FOUND = 120.0
"""Seconds to find the name of an environment."""


@dataclass(frozen=True)
class EnvironmentFiles:
    """The files of an environment."""

    files: Mapping[str, str]
    """Name → text; the first says how it is built."""
    inherit: bool
    wheels: TreeParcel | None


def collect_requirements(viewer: Viewer, profile: Profile, code: RunCode | None = None) -> EnvironmentFiles:
    """Read the files of `job.environment`; those in the code of an earlier run are as they were. Raises InputError."""
    wanted = profile.job.environment
    assert wanted is not None
    main = profile.local_path(wanted.source, "job", "environment", "from")
    read = _reader(code, viewer.environ)
    inner = [] if read.has(main) or main.is_file() else [inside(main, name) for name in _MAIN]
    if main.is_dir() or any(map(read.has, inner)):
        found = next((path for path in inner if read.has(path) or path.is_file()), None)
        if found is None:
            cure = f"Add one of {', '.join(_MAIN)}, or name the file by job.environment.from."
            raise InputError("no requirements found", cure, place=printable(str(main)))
        main = found
    files: dict[str, str] = {}
    _read(main, main.parent, files, read)
    if main.name == "uv.lock":
        _read(main.with_name("pyproject.toml"), main.parent, files, read)
    if wanted.inherit and main.suffix in (".lock", ".yml", ".yaml"):
        raise InputError(
            f"inherit: true does not work with {main.name}, which pins every package", "Use a requirements.txt."
        )
    if not (code and code.recorded):
        for name in files:
            check_shared(inside(main.parent, name), "job.environment.from", viewer.environ)
    where = wanted.wheels and profile.local_path(wanted.wheels, "job", "environment", "wheels")
    if where:
        for path in (where, *(one for one in where.glob("*") if one.is_symlink())):
            check_shared(path, "job.environment.wheels", viewer.environ)
    return EnvironmentFiles(files, wanted.inherit, _packed(viewer, where) if where else None)


class _Reader(NamedTuple):
    """Reads files of this machine, or what they were in recorded code."""

    folder: Path
    objects: Mapping[str, str]
    """Relative path → the object with the content."""
    environ: Mapping[str, str]

    def has(self, path: Path) -> str:
        """The object of a file in the recorded code; empty: it is not there."""
        name = path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else ""
        return self.objects.get(name, "")

    def __call__(self, path: Path) -> bytes:
        """The content. Raises OSError, NoRegularFileError."""
        if not (recorded := self.has(path)):
            return private.read(path, _MOST + 1)[0]
        found = content(recorded, _MOST + 1, self.environ)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no longer on this machine as it was")
        return found


def _reader(code: RunCode | None, environ: Mapping[str, str]) -> _Reader:
    if code is None or not code.recorded:
        return _Reader(Path(), {}, environ)
    entries = tree.decode(code.manifest)
    return _Reader(code.folder, {os.fsdecode(one.path): one.value for one in entries if one.kind != "l"}, environ)


def _read(path: Path, top: Path, files: dict[str, str], read: _Reader) -> None:
    try:
        name = path.resolve().relative_to(top.resolve()).as_posix()
    except ValueError:
        raise InputError(
            f"the file is outside of {printable(str(top))}", "Move it into that folder.", place=printable(str(path))
        ) from None
    if name in files:
        return
    try:
        text = read(path).decode()
    except (OSError, ValueError, private.NoRegularFileError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise InputError(f"cannot be read: {why}", "Correct job.environment.", place=printable(str(path))) from None
    files[name] = text
    if sum(map(len, files.values())) > _MOST or len(files) > _MOST_FILES:
        raise InputError(
            "the files of the environment exceed 3 MiB or 64 files", "Name a requirements file.", place=str(path)
        )
    if path.suffix not in (".lock", ".toml", ".yml", ".yaml"):
        _follow(path, text, top, files, read)


def _follow(path: Path, text: str, top: Path, files: dict[str, str], read: _Reader) -> None:
    """Read the files that a requirements file refers to. Raises InputError for a requirement with a local path."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if found := _REFERS.match(words):
            if "://" not in found[2]:
                _read(path.parent / found[2], top, files, read)
        elif _LOCAL.match(words):
            cure = "Put its wheel into job.environment.wheels, or install it from the synced code by job.setup."
            what = f"{printable(words[:100])} is a path on this machine"
            raise InputError(what, cure, place=f"{printable(str(path))}:{number}")


def _packed(viewer: Viewer, folder: Path) -> TreeParcel:
    """Add the wheels of a folder to the store and return their parcel. Raises InputError."""
    store, entries = code_store(viewer.environ), []
    try:
        for path in sorted(folder.iterdir()):
            if path.name.endswith((".whl", ".tar.gz", ".zip")):
                with path.open("rb") as file:
                    seen = hashlib.sha256()
                    while data := file.read(1 << 20):
                        seen.update(data)
                    name, size = seen.hexdigest(), file.tell()
                    if not store.has(name, size):
                        file.seek(0)
                        with store.writer(name) as writer:
                            shutil.copyfileobj(file, writer, 1 << 20)
                            writer.done()
                entries.append(tree.Entry(path.name.encode(), "f", size, name))
    except OSError as error:
        cure = "Correct job.environment.wheels."
        place = printable(str(error.filename or folder))
        raise InputError(f"cannot be read: {error.strerror}", cure, place=place) from None
    if not entries:
        cure = "Fill it: pip download -d FOLDER -r requirements.txt"
        raise InputError("no wheels found", cure, place=printable(str(folder)))
    manifest = tree.encode(entries)
    store.add(manifest)
    return TreeParcel(tree.digest(manifest), manifest, store)


def with_environments(
    viewer: Viewer,
    profile: Profile,
    links: Sequence[Link],
    facts: Sequence[HostFacts],
    tell: Tell | None = None,
    *,
    reopen: Callable[[int], Link] | None = None,
    code: RunCode | None = None,
) -> tuple[Profile, list[HostFacts]]:
    """The profile with the interpreters of its environments, and the hosts' facts with them.

    Args:
        links, facts: Of the hosts of the profile, in its order.
        tell: Takes the progress of each host.
        reopen: Makes a new link to a host. With it, what is missing is built; else those hosts stay as they are.
        code: Of the earlier run that is repeated.

    Raises:
        DisttuiError: The environment cannot be described, or a host cannot build it.
    """
    if profile.job.environment is None:
        return profile, list(facts)
    tell = tell or (lambda node, kind, note: None)
    made_of, every = collect_requirements(viewer, profile, code), range(len(profile.hosts))
    env = [{**plain, **secret} for plain, secret in (profile.split_env(node, viewer.secrets.value) for node in every)]
    sent: dict[int, str] = {}
    folder = f"{WHEELS}/{made_of.wheels.tree}" if made_of.wheels else ""
    hosts, found = list(profile.hosts), list(facts)
    nodes = [node for node, host in enumerate(hosts) if not has_environment(profile, host)]

    def ask(some: Sequence[int], build: bool) -> list[EnvironmentAnswer]:
        requests = {
            node: {
                "files": dict(made_of.files), "inherit": made_of.inherit, "wheels": folder, "build": build,
                "sent": sent.get(node, ""),
                "python": find_python(profile, hosts[node], found[node])[0], "env": env[node],
            } for node in some
        }  # fmt: skip
        return stream_all(links, "environment", requests, "installing", tell, None if build else _FOUND)

    answers = dict(zip(nodes, ask(nodes, build=False), strict=True))
    lacking = [node for node in nodes if not answers[node]["python"]]
    if lacking and reopen:

        def give(wheels: TreeParcel, some: Sequence[int]) -> None:
            send(
                wheels, [links[node] for node in some], run="wheels", run_dir=WHEELS, to=f"{WHEELS}/{wheels.tree}",
                reopen=lambda index: reopen(some[index]), ports=profile.launch.ports,
                addresses=[meeting_addresses(profile)[node] for node in some],
                tell=lambda index, kind, note: tell(some[index], "installing", f"sending wheels: {note}"),
            )  # fmt: skip

        if made_of.wheels:
            give(made_of.wheels, lacking)
        answers.update(zip(lacking, ask(lacking, build=True), strict=True))
        offline = {node: answers[node]["offline"] for node in lacking if "offline" in answers[node]}
        kinds = {str({**one, "why": ""}): node for node, one in reversed(offline.items())}
        for kind, node in kinds.items():
            tell(node, "installing", "downloading wheels here")
            with tempfile.TemporaryDirectory() as made:
                download(made_of.files, hosts[node].name, offline[node], Path(made), viewer.environ)
                wheels = _packed(viewer, Path(made))
            some = [other for other, one in offline.items() if str({**one, "why": ""}) == kind]
            give(wheels, some)
            sent.update(dict.fromkeys(some, f"{WHEELS}/{wheels.tree}"))
        if offline:
            answers.update(zip(offline, ask(list(offline), build=True), strict=True))

    ready = [node for node, host in enumerate(hosts) if node not in answers or answers[node]["python"]]
    for node in answers.keys() & ready:
        hosts[node] = hosts[node].model_copy(update={"python": answers[node]["python"]})
    profile = profile.model_copy(update={"hosts": tuple(hosts)})

    def again(node: int) -> HostFacts:
        asked = facts_of(hosts[node].name, links[node].request("probe", **probe_request(profile, node)))
        return replace(asked, packages=answers[node]["packages"] if node in answers else facts[node].packages)

    for node, one in zip(ready, side_by_side(again, ready), strict=True):
        found[node] = one
    return profile, found
