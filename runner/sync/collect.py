"""Selects the files of a folder to send to hosts, and stores them by content; records what is left out, and why."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.formatting import count
from disttui.runner.profile.problems import printable
from disttui.runner.protocol import tree
from disttui.runner.protocol.limits import CODE_DIFF, CODE_UNTRACKED
from disttui.runner.protocol.names import GIT_FILTERS, filters_off
from disttui.runner.protocol.objects import Store
from disttui.runner.sync.patterns import Ignored, Patterns

DEFAULTS = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", "wandb/", "checkpoints/",
    "*.ckpt", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""Patterns that are left out if the folder is not in a git repository."""
_LEFTOVERS = ("__pycache__/", "*.pyc", "node_modules/", *DEFAULTS[-5:])
"""Patterns that are also left out of a git repository, unless files are tracked."""
_BY_GIT = "ignored by git"
_NAMED = 10
"""Ignored files and LFS pointers listed by name."""
MOST = 100 * 10**6
"""Bytes above which a file is left out; the default of `job.sync.max`."""
_SECRET_NAMES = re.compile(
    r".*\.env(\..+)?|\.envrc|[._]?netrc|\.pgpass|\.htpasswd|\.pypirc|(\.git-)?credentials|.*credentials\.json|kaggle\.json"
    r"|client_secret.*\.json|secrets\.(json|toml|ya?ml)|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.+\.(p12|pfx|jks|keystore|ppk|kdbx)"
    r"|\.s3cfg|\.boto|rclone\.conf|\.vault-token",
    re.IGNORECASE,
)
_NO_SECRETS = re.compile(r".+\.(example|sample|template|dist)")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----(\s|\\[nr])")
"""Includes the line break, also escaped as in JSON: source code that searches for keys has only the words."""
_HEAD = 1 << 16
"""Bytes of a file that are searched for a private key."""
_POINTER, _LARGEST_POINTER = b"version https://git-lfs.github.com/spec/v1\n", 1024
"""Beginning of a Git LFS pointer, which replaces a file that was not fetched, and its largest size in bytes."""
_SETTLED = 2.0
"""Seconds: a file changed more recently may change again with the same time stamp, so its hash is not cached."""
_TRIES = 5
"""Attempts to read a file that changes while being read."""
_GIT_PATIENCE = 60.0
# Starts no program that the repository's own configuration names, which may have come with the code.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_NOT_ENTERED = re.compile(rb"^warning: could not open directory '(.+?)/?': (.+)$", re.MULTILINE)
_LARGEST_CACHE = 256 << 20
_PIECE = 1 << 18
_PACE = 0.5
"""Seconds between two progress reports; an interrupt takes effect at the next one."""


class Wanted(NamedTuple):
    """What to send, according to `job.sync`."""

    folder: Path
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    most: int = MOST
    whole: bool = False
    """Whether to send data: everything except secrets and exclusions, regardless of git and size."""
    only: str = ""
    """The name of a single file to send, or ""."""


@dataclass(frozen=True)
class Omitted:
    """A file or folder that is left out."""

    path: str
    """Relative path, safe to print; a folder's ends with a slash."""
    why: str
    size: int | None = None
    """Bytes; None for a folder or a link."""
    secret: bool = False


@dataclass(frozen=True)
class GitState:
    """What is checked out in a folder; all values are empty if it is not in a git repository."""

    commit: str = ""
    branch: str = ""
    diff: str = ""
    cut: bool = False
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collected:
    """A snapshot of a folder; the store has the content of its files."""

    folder: Path
    sha256: str
    """Digest of `manifest`, which names the tree."""
    manifest: bytes
    entries: tuple[tree.Entry, ...]
    omitted: tuple[Omitted, ...] = ()
    new: tuple[tuple[str, int], ...] = ()
    """Names and sizes of objects that were new to the store, and so most likely are to hosts."""
    pointers: tuple[str, ...] = ()
    """Paths, safe to print, of files that Git LFS has not fetched: the tree has their pointers."""

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(one.size for one in self.entries)


def collect(wanted: Wanted, store: Store, cache: Path, tell: Callable[[str], None] = lambda _: None) -> Collected:
    """Read the files of a folder to send, and put new content into the store.

    Args:
        cache: A folder for the hashes of unchanged files.
        tell: Called with the progress of reading, as text. An exception that it raises ends the reading.

    Raises:
        InputError: The folder cannot be sent, or a file cannot be read or keeps changing.
    """
    folder = wanted.folder.resolve() if wanted.only else _checked(wanted.folder)
    try:
        return _Collector(wanted._replace(folder=folder), store, cache, tell).collect()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "Free space there, or set XDG_CACHE_HOME to another folder."
            raise InputError(f"cannot be written: {error.strerror}", cure, place=store.folder) from None
        place = printable(os.fsdecode(error.filename or folder))
        cure = "Make it readable, or exclude it in .disttuiignore or job.sync.exclude."
        raise InputError(f"cannot be read: {error.strerror}", cure, place=place) from None


def git_state(folder: Path, only: str = "") -> GitState:
    """Return commit, branch and uncommitted changes of a folder, or `only` of a file; all are empty if git fails."""
    try:
        folder = folder.expanduser().resolve()
        if _repository(folder) is None:
            return GitState()
        commit = _git(folder, "rev-parse", "--verify", "HEAD").decode("ascii", "replace").strip()
        branch = ""
        with suppress(InputError):  # the head may be detached
            branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD").decode("utf-8", "replace").strip()[:200]
        with suppress(InputError, ValueError):
            words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "HEAD", "--")
            off = filters_off(_run_git(folder, *GIT_FILTERS, fine=(0, 1)).stdout.decode("utf-8", "surrogateescape"))
            diff = _git(folder, *off, *words, only or ".")
            names = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", only or ".").split(b"\0")
            text = diff.decode("utf-8", "replace")
            untracked = tuple(name.decode("utf-8", "replace")[:1000] for name in names if name)[:CODE_UNTRACKED]
            return GitState(commit, branch, text[:CODE_DIFF], len(text) > CODE_DIFF, untracked)
        return GitState(commit, branch)
    except (InputError, OSError, RuntimeError):
        return GitState()


class _Known(NamedTuple):
    """The hash of a file, valid while its `_status` is the same."""

    status: str
    sha256: str
    secret: bool
    pointer: bool


class _Collector:
    def __init__(self, wanted: Wanted, store: Store, cache: Path, tell: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._tell, self._told = tell, time.monotonic()
        self._bytes = self._total = 0
        self._unread: list[bytes] = []
        """Files whose hash is unknown, found in the first pass."""
        self._reading = False
        self._new: dict[str, int] = {}
        self._store = store
        self._folder = os.fsencode(wanted.folder)
        name = hashlib.sha256(self._folder + os.fsencode(f"/{wanted.only}" * bool(wanted.only))).hexdigest()[:32]
        self._cache = cache / f"{name}.json"
        self._known: dict[str, _Known] = {}
        self._same: dict[bytes, os.stat_result] = {}
        """The status of each file of `_known` that is as it was, and whose content the store has."""
        self._kept: dict[str, _Known] = {}
        self._changed = False
        self._include = Patterns(wanted.include)
        self._exclude = Patterns(wanted.exclude) if wanted.only else Ignored(wanted.folder, wanted.exclude)
        self._leftovers = Patterns(_LEFTOVERS)
        self._leftover_folders: dict[bytes, tuple[bytes, str] | None] = {}
        self._omitted: dict[str, Omitted] = {}
        self._pointers: list[str] = []
        self._real: dict[bytes, bool] = {}
        self._listed_as: dict[bytes, os.stat_result] = {}
        """The status of each file from the listing, until it is used."""

    def collect(self) -> Collected:
        listed = self._few(list(self._listed()))
        found = [self._entry(path) for path in listed]
        if self._unread:
            found += self._read_unread()
        entries = tuple(sorted(filter(None, found)))
        if self._changed or len(self._kept) != len(self._known):
            _save(self._cache, self._kept)
        manifest = tree.encode(entries)
        name = tree.digest(manifest)
        if not self._store.has(name, len(manifest)):
            self._store.add(manifest)
            self._store.tidy({name, *tree.objects(entries)})
        new = tuple(self._new.items())
        omitted, pointers = tuple(self._omitted.values()), tuple(sorted(self._pointers))
        return Collected(self._wanted.folder, name, manifest, entries, omitted, new, pointers)

    def _read_unread(self) -> list[tree.Entry | None]:
        """Return entries of files with unknown hashes. Threads help, as hashing and writing release the GIL."""
        unread, self._unread = self._unread, []
        todo, many = iter(unread), min(len(unread), os.cpu_count() or 1)
        self._reading = True
        with ThreadPoolExecutor(many, "read") as pool:
            parts = [pool.submit(lambda: [self._entry(path) for path in todo]) for _ in range(many)]
            try:
                done = wait(parts, return_when=FIRST_EXCEPTION).done
                return [entry for part in done for entry in part.result()]
            finally:
                self._reading = False

    def _recognize(self) -> None:
        """Find the files that are as they were when they were last read, unless that has been done."""
        if self._known:
            return
        self._known = _load(self._cache)
        for name, known in self._known.items():
            path = os.fsencode(name)
            try:
                seen = os.lstat(b"%s/%s" % (self._folder, path))
            except OSError:
                continue  # deleted, or in a folder that cannot be entered any more
            if known.status == _status(seen) and self._store.has(known.sha256, seen.st_size):
                self._same[path] = seen

    def _listed(self) -> Iterable[bytes]:
        if self._wanted.only:
            self._recognize()
            return [os.fsencode(self._wanted.only)]
        folder = self._wanted.folder
        if not self._wanted.whole and (folder / "HEAD").is_file() and {"objects", "refs"} <= {*os.listdir(folder)}:
            what = "this is the inside of a git repository, which has no files to run"
            raise InputError(what, "Name a folder in which it is checked out.", place=str(folder))
        listed = self._listed_by_git() if not self._wanted.whole and _repository(folder) else None
        self._recognize()
        if not listed:
            return self._walked()
        self._note_unlisted(listed)
        return listed

    def _few(self, listed: list[bytes]) -> list[bytes]:
        """Return the files unchanged. Raises InputError if there are too many, before spending minutes on reading."""
        if len(listed) > tree.MOST_FILES:
            name = os.fsdecode
            counted = [path for path in listed if self._exclude.matching_any_part(name(path)) is None]
            [(top, most)] = Counter(path.partition(b"/")[0] for path in counted).most_common(1) or [(b"", 0)]
            if len(counted) > tree.MOST_FILES:
                what = f"{len(counted):,} files; at most {tree.MOST_FILES:,} can be sent"
                where = f"{printable(name(top))}/, which has {most:,}, " if most > 1 else "folders "
                cure = f"Exclude {where}in .disttuiignore there, or in job.sync.exclude."
                raise InputError(what, cure, place=str(self._wanted.folder))
        return listed

    def _listed_by_git(self) -> set[bytes]:
        """Return the files that git tracks or does not ignore below the folder, including nested repositories."""
        found, ignored, todo = set[bytes](), set[bytes](), [b""]
        while todo:
            inside = todo.pop()
            folder = Path(os.fsdecode(os.path.join(self._folder, inside)))
            with ThreadPoolExecutor(2, "git") as pool:
                listing = pool.submit(_run_git, folder, "ls-files", "-c", "-o", "--exclude-standard", "-t", "-z")
                leaving = pool.submit(_git, folder, "ls-files", "-o", "-i", "--exclude-standard", "--directory", "-z")
                self._recognize()  # in the meantime
            self._note_not_entered(folder, listing.result().stderr)
            for line in listing.result().stdout.split(b"\0"):
                state, _, name = line.partition(b" ")
                path = inside + name.rstrip(b"/")
                if path.count(b"/") > tree.DEEPEST:
                    self._omit(path, tree.flaw(path))
                    continue
                if state == b"?" and (leftover := self._leftover(path, folder=name.endswith(b"/"))):
                    self._omit(leftover[0], f"left out by default ({leftover[1]})")
                    continue
                full = b"%s/%s" % (self._folder, path)
                # Git still lists deleted files, and files whose folder was replaced by a link.
                try:
                    seen = self._same.get(path) or os.lstat(full)
                except PermissionError:
                    if self._exclude.matching_any_part(os.fsdecode(path)) is None:
                        raise
                    continue
                except OSError:
                    continue
                if not name or not self._is_real(full.rpartition(b"/")[0]):
                    continue
                if not stat.S_ISDIR(seen.st_mode):
                    found.add(path)
                    self._listed_as[path] = seen
                elif os.path.lexists(os.path.join(full, b".git")):
                    todo.append(path + b"/")
                else:
                    self._omit(path + b"/", "a submodule without its files")
            ignored.update(inside + name for name in leaving.result().split(b"\0") if name)
        # If git ignores the folder itself, the caller treats it as one without git.
        return found | set(self._included_of(ignored)) if found else found

    def _note_unlisted(self, found: Iterable[bytes]) -> None:
        """Record what git does not list at all, beside the files that it lists: empty folders and special files."""
        folders = {b""}
        for path in found:
            while (path := path.rpartition(b"/")[0]) not in folders:
                folders.add(path)
        for inside in folders:
            with suppress(OSError), os.scandir(os.path.join(self._folder, inside)) as entries:
                for entry in entries:
                    path, is_folder = os.path.join(inside, entry.name), entry.is_dir()
                    if entry.is_symlink() or entry.is_file() or path in folders:
                        continue
                    shown = printable(os.fsdecode(path)) + "/" * is_folder
                    excluded = self._exclude.matching_any_part(os.fsdecode(path) + "/x" * is_folder) is not None
                    if excluded or shown in self._omitted:
                        continue
                    if not is_folder:
                        self._omit(path, f"not a file ({_kind(entry.stat().st_mode)})")
                    elif not os.listdir(entry):
                        self._omit(path + b"/", "an empty folder")

    def _note_not_entered(self, folder: Path, warnings: bytes) -> None:
        """Record the folders that git could not read; their paths in `warnings` are relative to the repository."""
        for path, why in _NOT_ENTERED.findall(warnings):
            full = os.path.join(os.fsencode(_repository(folder) or folder), path)
            inside = os.path.relpath(full, self._folder)
            if self._exclude.matching_any_part(os.fsdecode(inside + b"/x")) is None:
                self._omit(inside + b"/", f"cannot be read: {why.decode('utf-8', 'replace')}")

    def _included_of(self, ignored: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the files ignored by git that job.sync.include matches; record the others as omitted."""
        for path in ignored:
            folder, name = path.endswith(b"/"), path.rstrip(b"/")
            some = [path] if self._include.matching_any_part(os.fsdecode(path)) else []
            included = self._included_below(path) if folder else some
            yield from included
            if not included and not self._leftover(name, folder=folder):
                with suppress(OSError):  # deleted in the meantime
                    self._omit(path, _BY_GIT, None if folder else os.lstat(os.path.join(self._folder, name)).st_size)

    def _included_below(self, folder: bytes) -> list[bytes]:
        """Return the files that job.sync.include matches in a folder that is left out."""
        files = self._below(folder) if self._wanted.include else ()
        return [one for one in files if self._include.matching_any_part(os.fsdecode(one))]

    def _below(self, inside: bytes) -> Iterator[bytes]:
        """Yield the files and links in a folder, recursively."""
        for at, folders, names in os.walk(os.path.join(self._folder, inside)):
            folders[:] = [name for name in folders if name != b".git"]
            links = (name for name in folders if os.path.islink(os.path.join(at, name)))
            yield from (os.path.relpath(os.path.join(at, name), self._folder) for name in (*names, *links))

    def _leftover(self, path: bytes, *, folder: bool) -> tuple[bytes, str] | None:
        """Return the path, or its topmost parent, that is left out by default, and the pattern or reason; or None."""
        above = path.rpartition(b"/")[0]
        if above and above not in self._leftover_folders:
            self._leftover_folders[above] = self._leftover(above, folder=True)
        if above and (found := self._leftover_folders[above]):
            return found
        name = os.fsdecode(path)
        why = self._leftovers.matching(name, folder=folder) or (folder and self._venv(path))
        if not why or self._include.matching(name, folder=folder) or self._brought_back(name, folder=folder):
            return None
        return path + b"/" * folder, why

    def _brought_back(self, name: str, *, folder: bool) -> bool:
        """Whether a `!` pattern includes a path again that is left out by default."""
        return self._exclude.deciding(name, folder=folder).startswith("!")

    def _venv(self, path: bytes) -> str:
        """Return the reason to leave out a virtual environment's folder, or "" for other folders."""
        return "a virtual environment" if os.path.exists(os.path.join(self._folder, path, b"pyvenv.cfg")) else ""

    def _walked(self) -> Iterator[bytes]:
        """Yield all files of a folder without git, except those left out by default."""
        defaults = Patterns(() if self._wanted.whole else DEFAULTS)
        todo = [b""]
        while todo:
            inside = todo.pop()
            try:
                with os.scandir(os.path.join(self._folder, inside)) as found:
                    entries = sorted(found, key=lambda one: one.name)
            except FileNotFoundError:
                continue  # deleted in the meantime
            if inside and not entries and not self._wanted.whole:
                self._omit(inside, "an empty folder")
            for entry in entries:
                path = inside + entry.name
                name = os.fsdecode(path)
                is_folder = entry.is_dir(follow_symlinks=False)
                pattern = defaults.matching(name, folder=is_folder)
                if is_folder and not self._wanted.whole:
                    pattern = self._venv(path) or pattern
                included = self._include.matching(name, folder=is_folder) is not None
                excluded = self._exclude.matching(name, folder=True) if is_folder else None
                if (pattern and not included and not self._brought_back(name, folder=is_folder)) or excluded:
                    some = self._included_below(path) if is_folder else []
                    yield from some
                    if some:
                        continue
                    why = f"excluded by {excluded}" if excluded else f"left out by default ({pattern})"
                    size = None if is_folder else entry.stat(follow_symlinks=False).st_size
                    self._omit(path + b"/" if is_folder else path, why, size)
                elif is_folder:
                    todo.append(path + b"/")
                else:
                    yield path

    def _entry(self, path: bytes) -> tree.Entry | None:
        """Return the entry of a file or link; None if it is omitted, deleted or yet to be read."""
        full = b"%s/%s" % (self._folder, path)
        name = os.fsdecode(path)
        try:
            seen = self._same.get(path) or self._listed_as.pop(path, None) or os.lstat(full)
        except (FileNotFoundError, NotADirectoryError):
            return None  # deleted in the meantime
        if why := tree.flaw(path):
            self._omit(path, why, seen.st_size if stat.S_ISREG(seen.st_mode) else None)
            return None
        included = (self._wanted.whole and bool(self._wanted.only)) or self._include.matching_any_part(name) is not None
        why = self._reason(path, name, seen, included=included)
        secret = False
        if not why and stat.S_ISLNK(seen.st_mode):
            return tree.link(path, os.readlink(full))
        if not why and not included:
            base = name.rpartition("/")[2]
            secret = bool(_SECRET_NAMES.fullmatch(base) and not _NO_SECRETS.fullmatch(base))
            why = "looks like a secret" if secret else ""
        if not why:
            content = self._content(path, full, name, seen)
            if content is None:
                return None  # deleted in the meantime, or yet to be read
            known, size = content
            if included or not known.secret:
                if known.pointer:
                    self._pointers.append(printable(name))
                return tree.Entry(path, "x" if seen.st_mode & 0o100 else "f", size, known.sha256)
            why, secret = "contains a private key", True
        self._omit(path, why, seen.st_size if stat.S_ISREG(seen.st_mode) else None, secret=secret)
        return None

    def _is_real(self, folder: bytes) -> bool:
        """Whether no component of a folder's path is a link."""
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder) == folder
        return self._real[folder]

    def _reason(self, path: bytes, name: str, seen: os.stat_result, *, included: bool) -> str:
        """Return why a file is left out according to its name and status, or ""."""
        if not included and (pattern := self._exclude.matching_any_part(name)):
            return f"excluded by {pattern}"
        if stat.S_ISLNK(seen.st_mode):
            target = os.readlink(os.path.join(self._folder, path))
            inside = tree.leads_inside(path, target)
            return "" if inside else f"a link to outside of the folder, to {printable(os.fsdecode(target))}"
        if not stat.S_ISREG(seen.st_mode):
            return f"not a file ({_kind(seen.st_mode)})"
        if included or self._wanted.whole or seen.st_size <= self._wanted.most:
            return ""
        return "larger than job.sync.max"

    def _content(self, path: bytes, full: bytes, name: str, seen: os.stat_result) -> tuple[_Known, int] | None:
        """Return hash and size of a file after storing its content; None if it was deleted or is yet to be read."""
        if path in self._same:
            self._kept[name] = known = self._known[name]
            return known, seen.st_size
        self._changed = True
        if not self._reading:
            self._unread.append(path)
            self._total += seen.st_size
            return None
        for attempt in range(_TRIES):
            time.sleep(0.05 * attempt)
            begun = time.time()
            if (read := self._read(full)) is None:
                if not os.path.lexists(full):
                    return None
                continue
            known, seen = read
            if max(seen.st_mtime, seen.st_ctime) < begun - _SETTLED:
                self._kept[name] = known
            return known, seen.st_size
        cure = "Wait until it is written, or exclude it by job.sync.exclude."
        raise InputError("this file changed while being read", cure, place=printable(os.fsdecode(full)))

    def _read(self, full: bytes) -> tuple[_Known, os.stat_result] | None:
        """Read a file into the store; None if it changed while being read, or is not a regular file any more."""
        try:
            descriptor = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise
        with os.fdopen(descriptor, "rb", 0) as file, self._store.writer() as writer:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return None
            size = 0
            secret = pointer = False
            while size <= before.st_size and (data := file.read(_PIECE)):
                if not size:
                    secret = bool(_PRIVATE_KEY.search(data[:_HEAD]))
                    pointer = before.st_size <= _LARGEST_POINTER and data.startswith(_POINTER)
                size += len(data)
                writer.write(data)
                self._progress(len(data))
            after = os.fstat(descriptor)
            if _status(before) != _status(after) or size != after.st_size:
                return None
            known = _Known(_status(after), writer.done(), secret, pointer)
            if writer.new:
                self._new[known.sha256] = size
            return known, after

    def _progress(self, size: int) -> None:
        if not self._reading:
            raise CancelledError  # another file could not be read, or the user interrupted
        self._bytes += size
        if (now := time.monotonic()) - self._told > _PACE:
            self._told = now
            self._tell(f"reading: {count(self._bytes)}B of {count(self._total)}B")

    def _omit(self, path: bytes, why: str, size: int | None = None, *, secret: bool = False) -> None:
        shown = printable(os.fsdecode(path))
        self._omitted[shown] = Omitted(shown, printable(why), size, secret)


def _checked(folder: Path) -> Path:
    """Return a folder's real path. Raises InputError if it must not be sent."""
    try:
        real = folder.expanduser().resolve(strict=True)
        if not real.is_dir():
            cure = "Set job.sync.from to the folder of your code, or to a regular file."
            what = "a link to a file" if real.is_file() else "neither a folder nor a regular file"
            raise InputError(what, cure, place=str(folder))
        home = Path.home().resolve()
    except (OSError, RuntimeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        cure = "Correct it, or name another: --set job.sync=FOLDER."
        raise InputError(f"cannot be read: {why}", cure, place=str(folder)) from None
    if home.is_relative_to(real):
        what = "job.sync would send your whole home folder" if real == home else "job.sync would send this whole disk"
        cure = "Put your code into a separate folder and name that, or name a single file."
        raise InputError(what, cure, place=str(real))
    return real


def _repository(folder: Path) -> Path | None:
    """Return the nearest folder with .git, the folder itself or a parent, or None."""
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)


def _git(folder: Path, *words: str) -> bytes:
    """Return the stdout of a git command. Raises InputError if it fails."""
    return _run_git(folder, *words).stdout


def _run_git(folder: Path, *words: str, fine: Sequence[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
    """Run a git command, and return stdout and stderr. Raises InputError if it fails."""
    env = {name: value for name, value in os.environ.items() if not re.match("GIT_(?!CONFIG_)", name)}
    try:
        done = subprocess.run(
            [*_GIT, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_PATIENCE,
            env={
                **env, "GIT_OPTIONAL_LOCKS": "0", "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1", "LC_ALL": "C",
                "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1",
            }, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise InputError("git not found", "Install git, which lists the files to send.", place=str(folder)) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"git did not answer in {_GIT_PATIENCE:.0f} s", place=str(folder)) from None
    if done.returncode not in fine:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        said = [line for line in said if line.startswith("fatal:")] or said  # warnings may come before
        what = f"git {words[0]} failed: {printable(said[0][:300])}"
        cure = "Repair the repository, or move its .git away to send the folder without git."
        if re.search("dubious ownership|unsafe repository", said[0]):
            owned = shlex.quote(str(_repository(folder)))
            cure = f"If you trust its owner: git config --global --add safe.directory {owned}"
        raise InputError(what, cure, place=str(folder))
    return done


def _kind(mode: int) -> str:
    kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _status(seen: os.stat_result) -> str:
    # JSON writes and reads a text in a third of the time of five numbers.
    return f"{seen.st_dev} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}"


def _load(path: Path) -> dict[str, _Known]:
    """Return the cached hashes, or {} if they cannot be read."""
    try:
        data = json.loads(private.read(path, _LARGEST_CACHE)[0])
        return {name: _Known(*one) for name, one in data.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _save(path: Path, known: dict[str, _Known]) -> None:
    with suppress(OSError):
        private.make_folder(path.parent)
        private.replace(path, json.dumps(known, separators=(",", ":")))


def omission_lines(omitted: Sequence[Omitted], shown: int = 20) -> list[str]:
    """Return one line per omission, secrets first, at most `shown`, and a single line for what git ignores."""
    ignored = sorted(_sized(one) for one in omitted if one.why == _BY_GIT)
    others = [one for one in omitted if one.why != _BY_GIT]
    ordered = sorted(others, key=lambda one: (not one.secret, -(one.size or 0), one.path))
    lines = [f"{_sized(one)}: {one.why}" for one in ordered[:shown]]
    if (more := len(ordered) - shown) > 0:
        lines.append(f"and {more:,} more")
    if ignored:
        named = [*ignored[:_NAMED], *([f"and {more:,} more"] if (more := len(ignored) - _NAMED) > 0 else [])]
        lines.append(f"{_BY_GIT}, but job.sync.include can name it: {', '.join(named)}")
    return lines


def pointer_lines(pointers: Sequence[str]) -> list[str]:
    """Return a warning about files that Git LFS has not fetched, or []."""
    named = [*pointers[:_NAMED], *([f"and {more:,} more"] if (more := len(pointers) - _NAMED) > 0 else [])]
    what = "sent as Git LFS pointers instead of the files (to fetch them: git lfs pull)"
    return [f"{what}: {', '.join(named)}"] if pointers else []


def _sized(one: Omitted) -> str:
    return one.path if one.size is None else f"{one.path} ({count(one.size)}B)"
