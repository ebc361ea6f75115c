"""What hosts get before a run: the code of `job.sync`, which is recorded with the run, and the `data` of a profile."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from disttui.runner import private
from disttui.runner.api.library import check_shared
from disttui.runner.api.questions import ignore
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.formatting import amount, count
from disttui.runner.hosts.answers import StagedTree
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import HostsError, Tell
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.profile.leaks import without_tokens
from disttui.runner.profile.problems import printable
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Data
from disttui.runner.protocol import tree
from disttui.runner.protocol.objects import DamagedError, Store, write_tree
from disttui.runner.runs.notes import CodeKept
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.remote import stream_all, together
from disttui.runner.sync.collect import (
    Collected,
    GitState,
    Omitted,
    Wanted,
    collect,
    git_state,
    omission_lines,
    pointer_lines,
)
from disttui.runner.sync.transfer import TreeParcel, send
from disttui.runner.text.masking import masked
from disttui.runner.user.folders import user_folder

MANIFEST = "code.tree"
"""The manifest of a run's code, beside its run.json."""
HERE = "this machine"
_MOST_TEXT = 1 << 20
"""Largest file in bytes whose lines are compared."""
_MOST_PAIRS = 1 << 20
"""Most pairs of equal lines in two files whose lines are compared."""
_ON_HOSTS = "Look in the run's folder on its hosts."


_Made = TypeVar("_Made")


class HostStep(NamedTuple):
    """The progress of a host before the start."""

    node: int
    kind: str
    """`connecting`, `probing`, `ready`, `installing`, `sending`, `data`, `setup` or `failed`."""
    note: str

    @property
    def words(self) -> str:
        """What is being sent, as text; empty for other steps."""
        what = {"installing": "environment", "sending": "sending the code", "data": "data", "setup": "setup"}.get(
            self.kind
        )
        return f"{what}: {self.note}" if what and self.note else ""


@dataclass(frozen=True)
class RunCode:
    """The code of a run that is about to start, complete in this machine's store."""

    folder: Path
    sha256: str
    """Hash of the manifest, which names the tree."""
    manifest: bytes
    files: int
    size: int
    """Bytes of all files."""
    omitted: tuple[Omitted, ...]
    git: GitState
    recorded: bool = False
    """Whether it comes from an earlier run, not from the folder as it is now."""
    new: tuple[tuple[str, int], ...] = ()
    """Names and sizes of objects new in this machine's store."""
    pointers: tuple[str, ...] = ()
    """Paths of files that Git LFS has not fetched."""

    def lines(self) -> list[str]:
        """What is sent, then what of the folder is not, and what is sent in place of a file."""
        changed = " and uncommitted changes" if self.git.diff else ""
        at = f", commit {self.git.commit[:12]}{changed}" if self.git.commit else ""
        which = "as in the earlier run" if self.recorded else f"from {self.folder}{at}"
        first = f"code: {amount(self.files, 'file')}, {count(self.size)}B, {which}"
        if not self.files:
            lacks = "all that is in it is left out" if self.omitted else "it has no files"
            first += f": {lacks}, so the run gets an empty folder"
        return [first, *(f"not sent: {line}" for line in omission_lines(self.omitted)), *pointer_lines(self.pointers)]


def collect_code(
    profile: Profile,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    tell: Callable[[str], None] = ignore,
) -> RunCode | None:
    """The folder or file that a profile sends, as it is now; None without `job.sync`.

    Args:
        folder: In place of the profile's.
        tell: Gets the progress of reading it, as a text.

    Raises:
        InputError: The folder cannot be sent, or has not got the job's script.
    """
    source = folder or profile.sync_source
    if profile.job.sync is None or source is None:
        return None
    sync = profile.job.sync
    check_shared(source, "job.sync", environ)
    single = _is_file(source)
    above, only = (source.parent, source.name) if single else (source, "")
    with ThreadPoolExecutor(1, "git") as pool:
        git = pool.submit(git_state, above, only)
        wanted = Wanted(above, sync.exclude, sync.include, sync.max, only=only)
        found = collect(wanted, code_store(environ), user_folder("cache", environ) / "sync", tell)
    _check_script(profile, found)
    return RunCode(
        source.resolve() if single else found.folder, found.sha256, found.manifest, len(found.entries), found.size,
        found.omitted, git.result(), new=found.new, pointers=found.pointers,
    )  # fmt: skip


def recorded_code(run: KnownRun, environ: Mapping[str, str] = os.environ) -> RunCode:
    """The code of an earlier run. Raises InputError if this machine no longer has it."""
    from disttui.runner.runs.notes import load_provenance

    kept = load_provenance(run.folder)
    store = code_store(environ)
    cure = "Add --latest to run the folder as it is now."
    try:
        manifest, entries = manifest_of(run)
        objects = tree.objects(entries)
        if kept and kept.code and kept.code.tree not in ("", tree.digest(manifest)):
            raise ValueError("the manifest was cut")
    except (OSError, ValueError):
        raise InputError(f"the code of {short(run.run)} was not recorded on this machine", cure) from None
    if not all(store.has(name, size) for name, size in objects.items()):
        raise InputError(f"the code of {short(run.run)} is no longer on this machine", cure)
    with suppress(OSError):
        store.add(manifest)
    code = kept.code if kept else None
    git = GitState(code.commit or "", code.branch, code.diff, code.cut, code.untracked) if code else GitState()
    size = sum(one.size for one in entries)
    folder = Path(code.folder if code else "")
    return RunCode(folder, tree.digest(manifest), manifest, len(entries), size, (), git, recorded=True)


def manifest_of(run: KnownRun) -> tuple[bytes, Sequence[tree.Entry]]:
    """The manifest of a run's code. Raises OSError if missing, ValueError if malformed."""
    data = private.read(inside(run.folder, MANIFEST), tree.MOST_BYTES)[0]
    return data, tree.decode(data)


def content(name: str, most: int, environ: Mapping[str, str] = os.environ) -> bytes | None:
    """The content of a file of recorded code; None if it is larger or no longer on this machine."""
    try:
        return code_store(environ).read(name, most)
    except (OSError, DamagedError):
        return None


def code_changes(one: KnownRun, other: KnownRun, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The unified diff of two runs' code, as lines with secrets masked.

    Raises OSError or ValueError where the code of one was not recorded on this machine.
    """
    before, after = ({entry.path: entry for entry in manifest_of(run)[1]} for run in (one, other))
    for path in sorted(before.keys() | after.keys()):
        first, second = before.get(path), after.get(path)
        if first == second:
            continue
        name = printable(os.fsdecode(path))
        texts = [_text(entry, environ) for entry in (first, second)]
        lines: list[str] = []
        old, new = (without_tokens(masked(text or "")).splitlines() for text in texts)
        if None not in texts and _equal_pairs(old, new) <= _MOST_PAIRS:
            names = (name if first else "/dev/null", name if second else "/dev/null")
            lines = list(difflib.unified_diff(old, new, *names, lineterm=""))
        yield from lines or [f"{name} differs: {_described(first)} → {_described(second)}"]


def _equal_pairs(old: Sequence[str], new: Sequence[str]) -> int:
    """Number of pairs of equal lines that difflib goes through again and again: of data it is in the billions."""
    before, after = Counter(old), Counter(new)
    most = len(new) // 100 + 1 if len(new) >= 200 else len(new)  # difflib skips lines that are more frequent
    return sum(before[line] * many for line, many in after.items() if many <= most)


def _text(entry: tree.Entry | None, environ: Mapping[str, str]) -> str | None:
    """A file's text; empty if missing, None if not text."""
    if entry is None:
        return ""
    if entry.kind == "l":
        return f"link to {os.fsdecode(entry.target)}"
    data = content(entry.value, _MOST_TEXT, environ) if entry.size <= _MOST_TEXT else None
    return None if data is None or b"\0" in data else data.decode("utf-8", "replace")


def _described(entry: tree.Entry | None) -> str:
    if entry is None:
        return "nothing"
    return f"{count(entry.size)}B, {entry.value[:12]}{', executable' if entry.kind == 'x' else ''}"


def code_files(run: KnownRun) -> list[tuple[str, int, str]]:
    """Path as safe text, size and SHA-256 of each file of a run's code. Raises InputError if none is recorded."""
    try:
        entries = manifest_of(run)[1]
    except (OSError, ValueError):
        what = f"no code of {short(run.run)} is recorded on this machine"
        raise InputError(what, "Only job.sync records code, where the run was started.") from None
    return [(printable(os.fsdecode(one.path)), one.size, "" if one.kind == "l" else one.value) for one in entries]


def code_file(run: KnownRun, path: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """The content of a file of a run's code. Raises InputError if it is not recorded, or no longer here."""
    found = {name: (size, sha256) for name, size, sha256 in code_files(run)}
    if path not in found or not found[path][1]:
        raise InputError(f"{printable(path)} is not in the code of {short(run.run)}", "List them by --code.")
    data = content(found[path][1], found[path][0], environ)
    if data is None:
        raise InputError(f"{printable(path)} is no longer on this machine", _ON_HOSTS)
    return data


def copy_code(run: KnownRun, to: Path, environ: Mapping[str, str] = os.environ) -> int:
    """Copy the code of a run into a new folder; returns the number of files.

    Raises:
        InputError: The folder exists or cannot be written, or the code is not on this machine.
    """
    try:
        recorded_code(run, environ)
    except InputError as error:
        raise InputError(error.what, _ON_HOSTS) from None
    store = code_store(environ)
    entries = manifest_of(run)[1]
    part = None
    try:
        if os.path.lexists(to):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(to))
        to.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".code-", dir=to.parent))
        write_tree(store, entries, os.fsencode(part))
        part.rename(to)
    except DamagedError as error:
        raise InputError(f"a file of the code is damaged: {str(error)[:12]}", place=str(to)) from None
    except OSError as error:
        cure = "Choose a new folder by --to."
        place = printable(os.fsdecode(error.filename or to))
        raise InputError(f"cannot copy the code: {error.strerror}", cure, place=place) from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
    return len(entries)


def keep_code(run: KnownRun, code: RunCode) -> CodeKept:
    """Write the manifest of a run's code beside its run.json; returns further provenance to record."""
    with suppress(OSError):
        private.replace(inside(run.folder, MANIFEST), code.manifest)
    git = code.git
    return CodeKept(
        HERE,
        str(code.folder),
        git.commit or None,
        without_tokens(git.diff),
        git.cut,
        git.untracked,
        git.branch,
        code.sha256,
    )


def carry(
    run: KnownRun,
    profile: Profile,
    code: RunCode,
    links: Sequence[Link],
    opener: Callable[[int], Link],
    environ: Mapping[str, str],
) -> Generator[HostStep]:
    """Send a run's code to its hosts; yields the progress.

    Args:
        opener: Makes a new link to the host of a node rank.

    Raises:
        DisttuiError: A host cannot be given it.
    """
    assert profile.job.sync is not None
    parcel = TreeParcel(code.sha256, code.manifest, code_store(environ), new=code.new)
    folder = profile.job.sync.folder(run.run_dir, run.run)
    yield from stepwise(
        lambda tell: send(
            parcel, links, run=run.run, run_dir=run.run_dir, to=folder, reopen=opener, tell=tell,
            addresses=meeting_addresses(profile)[: len(links)], ports=profile.launch.ports,
        )
    )  # fmt: skip


def meeting_addresses(profile: Profile) -> list[str | None]:
    """Address of each host for the other hosts; None: any of its addresses."""
    # With a master on loopback, all hosts are this machine, so nothing must listen on the network.
    alone = profile.launch.master if profile.launch.master in ("127.0.0.1", "::1") else None
    return [alone or host.address for host in profile.hosts]


def stepwise(
    work: Callable[[Callable[[int, str, str], None]], _Made], unwanted: Callable[[_Made], object] | None = None
) -> Generator[HostStep, None, _Made]:
    """Do work in a thread, yield the steps it reports, and return its result.

    Args:
        unwanted: Takes the result if the caller leaves before it comes. Without it, a caller that leaves cancels the
            work: its next report raises CancelledError there.
    """
    steps: SimpleQueue[HostStep | None] = SimpleQueue()
    left = threading.Event()

    def report(node: int, kind: str, note: str) -> None:
        if left.is_set() and unwanted is None:
            raise CancelledError
        steps.put(HostStep(node, kind, note))

    pool = ThreadPoolExecutor(1, "steps")
    working = pool.submit(work, report)
    working.add_done_callback(lambda _: steps.put(None))
    try:
        while (step := steps.get()) is not None:
            yield step
    except BaseException:  # the caller stops iterating, or Ctrl-C
        left.set()
        if unwanted is not None:
            close = unwanted
            working.add_done_callback(lambda done: done.exception() or close(done.result()))
        raise
    finally:
        pool.shutdown(wait=False)
    return working.result()


def code_store(environ: Mapping[str, str]) -> Store:
    """This machine's store of what is sent to hosts. Raises InputError."""
    folder = user_folder("cache", environ)
    try:
        private.make_folder(folder)
        return Store(str(folder / "objects"))
    except OSError as error:
        cure = "Free space there, or set XDG_CACHE_HOME to a folder of your own."
        raise InputError(f"cannot use this cache: {error.strerror}", cure, place=str(folder)) from None


def _is_file(path: Path) -> bool:
    """Whether this is a regular file, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _check_script(profile: Profile, found: Collected) -> None:
    """Raise InputError if the job's script is not sent."""
    script = profile.job.script
    if script is None or script[:1] in ("/", "~"):
        return
    path = re.sub(r"^(\./+)+|/+$", "", script)
    paths = {os.fsdecode(one.path) for one in found.entries}
    # The folder has another name on the hosts, where a path that leaves it does not lead back.
    leaves = os.path.normpath(path).startswith("..")
    real = path if leaves else os.path.relpath(os.path.realpath(f"{found.folder}/{path}"), found.folder)
    if path in ("", ".") or not {path, real, f"{real}/__main__.py"}.isdisjoint(paths):
        return
    place = f"{found.folder}/{printable(path)}"
    above = [printable(str(one)) for one in PurePosixPath(path).parents]
    left_out = {printable(path), *(f"{one}/" for one in (printable(path), *above))}
    omitted = next((one for one in found.omitted if one.path in left_out), None)
    if omitted:
        cure = f"Add {omitted.path} to job.sync.include."
        if omitted.why.startswith("excluded"):
            cure = "Remove its pattern from job.sync.exclude or .disttuiignore."
        elif omitted.why.startswith("a link"):
            cure = "Name the file itself, or put it in place of the link."
        raise InputError(f"the script is not sent: {omitted.why}", cure, place=place)
    cure = "Correct job.script, which is relative to the folder of job.sync."
    raise InputError("the script is not among the files that job.sync sends", cure, place=place)


def stage(
    viewer: Viewer, known: KnownRun, profile: Profile, links: Sequence[Link], reopen: Callable[[int], Link], tell: Tell
) -> None:
    """Bring the data of a profile to all hosts. Raises DisttuiError, which names host, source and cure."""
    for index in range(len(profile.data)):
        _Staging(viewer, known, profile, index, links, reopen, tell).run()


class _Staging:
    """Brings one entry of `data` to all hosts."""

    def __init__(
        self, viewer: Viewer, known: KnownRun, profile: Profile, index: int,
        links: Sequence[Link], reopen: Callable[[int], Link], tell: Tell,
    ) -> None:  # fmt: skip
        self._viewer, self._known, self._profile, self._index = viewer, known, profile, index
        self._data: Data = profile.data[index]
        self._links, self._reopen = links, reopen
        self._store = code_store(viewer.environ)
        self._tell: Tell = lambda node, kind, note: tell(node, "data", f"{self._data.to}: {note}")

    def run(self) -> None:
        host, _ = self._data.host_path
        nodes = [node for node, one in enumerate(self._profile.hosts) if one.name == host] or range(len(self._links))
        try:
            if not self._data.is_address and not host:
                parcel, single = self._collected()
                self._send(parcel, single=single)
                return
            found = self._fetched(nodes)
            if self._data.sha256 and not self._is_wanted(found):
                raise HostError(
                    host, "the data's SHA-256 differs from the profile's", "Correct the profile or the file."
                )
            parcel = TreeParcel(found["tree"], found["manifest"], self._store, here=False)
            self._store.add(found["manifest"])
            try:
                self._send(parcel, single=found["file"])
            except HostError:
                if host:
                    raise
                self._ask(nodes, fetch=True)  # hosts that cannot connect to the others may still reach the address
                self._send(parcel, single=found["file"])
        except DisttuiError as error:
            parts = [self._named(part) for part in error.parts or [error]]
            raise parts[0] if len(parts) == 1 else HostsError(parts) from None

    def _is_wanted(self, found: StagedTree) -> bool:
        """Whether what a host has is the one file with the profile's hash, and no other that takes its name."""
        [one, *others] = tree.decode(found["manifest"])
        named = os.fsdecode(one.path) == PurePosixPath(self._data.to).name
        return found["file"] and not others and one.kind != "l" and named and one.value == self._data.sha256

    def _named(self, error: DisttuiError) -> DisttuiError:
        if isinstance(error, InputError):
            return error
        what = f"data {self._data.to} from {printable(self._data.source)}: {error.what}"
        return HostError(error.host, what, error.cure, cause=error.cause)

    def _send(self, parcel: TreeParcel, *, single: bool) -> None:
        send(
            parcel, self._links, run=self._known.run, run_dir=self._known.run_dir, to=self._data.to,
            reopen=self._reopen, tell=self._tell, addresses=meeting_addresses(self._profile)[: len(self._links)],
            ports=self._profile.launch.ports, data="file" if single else "folder",
        )  # fmt: skip

    def _collected(self) -> tuple[TreeParcel, bool]:
        """Collect local data into the store; return its parcel, and whether it is a single file. Raises InputError."""
        place = ("data", self._index, "from")
        path = self._profile.local_path(self._data.source, *place)
        cure = f"Correct data.{self._index}.from."
        check_shared(path, f"data.{self._index}.from", self._viewer.environ)
        try:
            path = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read the data: {why}", cure, place=printable(str(path))) from None
        single = not path.is_dir()
        wanted = Wanted(path.parent if single else path, whole=True, only=path.name if single else "")
        cache = user_folder("cache", self._viewer.environ) / "sync"
        found = collect(wanted, self._store, cache, lambda text: self._tell(0, "data", text))
        for line in omission_lines(found.omitted):
            self._tell(0, "data", f"not sent: {line}")
        for line in pointer_lines(found.pointers):
            self._tell(0, "data", line)
        if not found.entries:
            raise InputError("no files found", cure, place=printable(str(path)))
        if not single and self._data.sha256:
            raise InputError("sha256 is set, but this is a folder", "Remove sha256.", place=printable(str(path)))
        if not single:
            return TreeParcel(found.sha256, found.manifest, self._store), False
        if self._data.sha256 not in (None, found.entries[0].value):
            what = f"its SHA-256 is {found.entries[0].value}"
            raise InputError(what, f"Correct data.{self._index}.sha256, or the file.", place=printable(str(path)))
        name = os.fsencode(PurePosixPath(self._data.to).name)
        manifest = tree.encode([found.entries[0]._replace(path=name)])
        self._store.add(manifest)
        return TreeParcel(tree.digest(manifest), manifest, self._store), True

    def _fetched(self, nodes: Sequence[int]) -> StagedTree:
        """Return the staged data of the first host that has it or can fetch it. Raises DisttuiError."""
        if self._data.is_address and (
            found := next((one for one in self._ask(nodes, fetch=False) if one["tree"]), None)
        ):
            return found
        errors: list[DisttuiError] = []
        for node in nodes:
            try:
                return self._ask([node], fetch=True)[0]
            except DisttuiError as error:
                errors.append(error)
        raise together(errors)

    def _ask(self, nodes: Sequence[int], *, fetch: bool) -> list[StagedTree]:
        requests = {}
        for node in nodes:
            plain, secret = self._profile.split_env(node, self._viewer.secrets.value)
            requests[node] = {
                "source": self._data.host_path[1] or self._data.source, "to": self._data.to, "fetch": fetch,
                "size": self._data.size or 0, "sha256": self._data.sha256 or "", "env": {**plain, **secret},
            }  # fmt: skip
        return stream_all(self._links, "stage", requests, "data", self._tell)
