"""Makes all calls of the git program.

Repository contents are untrusted. git checks out none of its files: they are read as objects and written by
`runner.library.syncing`, so that its filters, attributes, hooks, submodules and links have no effect. No program is
taken from its configuration. git never prompts for a password.
"""

from __future__ import annotations

import getpass
import os
import re
import selectors
import shlex
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.text import clean, is_clean

LARGEST = 4 << 20
"""Bytes of the largest file that is read."""
_MOST = 64 << 20
"""Bytes of a command's output: a tree of a few KB can list more files than fit into memory."""
_MOST_WORDS = 1 << 20
"""Bytes of a command's errors; the remainder is discarded."""
_MOST_STORED = 1 << 30
"""Bytes of the single file that a fetch may write: git itself sets no limit."""
_MOST_MEMORY = 2 << 30
"""Bytes of data memory of a fetch: a pack of a few MB can contain files of many GB. The address space is not limited,
since login helpers in Go or .NET reserve a multiple of the machine's memory."""
_SECONDS, _NETWORK_SECONDS, _CONNECT_SECONDS = 60, 300, 8
_SHA1 = 40 * "0"
_MOST_COMMITS = 100
_OPTIONS = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false", "core.untrackedCache=false",
    "core.attributesFile=/dev/null", "core.quotePath=false", "submodule.recurse=false", "core.logAllRefUpdates=false",
    "fetch.fsckObjects=true", "fetch.recurseSubmodules=false", "push.recurseSubmodules=no", "gc.auto=0",
    "maintenance.auto=false", "init.defaultBranch=main", "init.templateDir=", "pack.threads=1",
    "fetch.unpackLimit=1",  # one pack per fetch, so that the limit of a file is that of the fetch
    "push.followTags=false", "push.gpgSign=false", "log.showSignature=false",
)  # fmt: skip
_INHERITED = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_CONFIG_GLOBAL",
              "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME",
              "GIT_COMMITTER_EMAIL", "GIT_EXEC_PATH")  # fmt: skip
"""Variables of git that are passed on. Others, such as those set in a hook, would redirect it to another repository."""
_PROGRAMS = {"openpgp": "gpg", "ssh": "ssh-keygen", "x509": "gpgsm"}
"""Signature format → git's default program."""
_UNTRUSTED = "git -c core.hooksPath=/dev/null -c core.alternateRefsCommand= -c core.fsmonitor=false "
_LOCAL = {
    "fetch": ("--upload-pack", f"{_UNTRUSTED} upload-pack"),
    "push": (
        "--receive-pack",
        f"{_UNTRUSTED} -c receive.autogc=false -c receive.denyCurrentBranch=refuse receive-pack",
    ),
}
"""Options that start the other side for a repository on this machine that others can change: otherwise it would run
their hooks and the programs in their configuration as this user."""
_AGAIN = re.compile(r"\[rejected\]|cannot lock ref|failed to update ref|incorrect old value|stale info", re.IGNORECASE)


_NOISE = ("hint:", "warning:", "Cloning into", "Please make sure", "and the repository")
_MISSING = ("the program git is not installed", "Install git: git libraries need it.")
_BOUNDED = (
    "sh", "-c", f'ulimit -f {_MOST_STORED >> 9}; ulimit -d {_MOST_MEMORY >> 10}; trap "" XFSZ; exec "$@"', "sh",
)  # fmt: skip


class GitError(InputError):
    """A git command failed."""


class TooLargeError(GitError):
    """A fetch exceeded `_MOST_STORED` or `_MOST_MEMORY`, and was not completed."""

    def __init__(self, where: str = "") -> None:
        super().__init__(
            f"more than {_MOST_STORED >> 20:,} MiB to fetch, or files that need more memory than that",
            "Remove large files from the repository and its history, then remove and add the library.",
            place=where,
        )


class RemoteError(DisttuiError):
    """The remote repository of a library is unreachable or rejects the operation. Exit code 3."""

    exit_code = 3
    code = "remote"


class Blob(NamedTuple):
    """An entry of a commit's tree."""

    mode: str
    """100644 or 100755 for files; links and submodules have others."""
    id: str

    @property
    def is_file(self) -> bool:
        """Whether it is a plain file."""
        return self.mode in ("100644", "100755")


class Commit(NamedTuple):
    """A commit in a history; `time` is the author's, in seconds since the epoch."""

    id: str
    author: str
    time: float
    subject: str


class Signature(NamedTuple):
    """The newest commit that changed a file, and its signature's status."""

    commit: str
    author: str
    status: str
    """One letter, as `%G?` of git log: G is good and trusted, N is not signed."""
    signer: str
    """The name in the key; "" if unknown."""

    @property
    def is_good(self) -> bool:
        """Whether a key that this user trusts made the signature."""
        return self.status == "G"

    def __str__(self) -> str:
        words = {
            "G": f"signed by {self.signer}",
            "N": "not signed",
            "B": "signed, but the signature is BAD",
            "U": "signed by a key that you do not trust",
            "E": "signed by an unknown key",
        }
        return words.get(self.status, "signed by an expired or revoked key")


class Repository:
    """A clone on this machine."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self._environ = environ

    def branch(self) -> str:
        """Return the current branch of the clone. Raises GitError if HEAD is detached or the folder is not a clone."""
        where = clean(str(self.folder))
        if not (self.folder / ".git").is_dir():
            raise GitError("not a git clone", "Move it away, then sync again.", place=where)
        try:
            return self._text("symbolic-ref", "--short", "HEAD")
        except GitError as error:
            if "not a symbolic ref" not in error.what:
                raise
            cure = f"Switch to its branch: git -C {where} switch main"
            raise GitError("the clone has a commit checked out, not a branch", cure, place=where) from None

    def commit_of(self, name: str) -> str | None:
        """Resolve a branch, a ref or an abbreviated id to a commit id, or None."""
        try:
            return self._text("rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}") or None
        except GitError:
            return None

    def files(self, commit: str | None) -> dict[str, Blob]:
        """Return all entries of a commit by path; {} for None."""
        if commit is None:
            return {}
        found = {}
        for line in self._run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
            about, _, path = line.partition(b"\t")
            mode, _, blob = about.decode().split(" ")
            found[os.fsdecode(path)] = Blob(mode, blob)
        return found

    def changes(self, old: str | None, new: str) -> dict[str, tuple[Blob | None, Blob | None]]:
        """Return what differs between two commits, as path → (before, after)."""
        before = old or self._run("mktree", given=b"").decode().strip()
        out = self._run("diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--raw", "--no-abbrev", before, new)
        parts = out.split(b"\0")[:-1]
        found = {}
        for about, path in zip(parts[::2], parts[1::2], strict=True):
            old_mode, new_mode, old_id, new_id, _ = about.decode().lstrip(":").split(" ")
            pairs = ((old_mode, old_id), (new_mode, new_id))
            one, other = (None if mode == "000000" else Blob(mode, blob) for mode, blob in pairs)
            found[os.fsdecode(path)] = (one, other)
        return found

    def sizes(self, blobs: Iterable[str]) -> dict[str, int]:
        """Return blob id → size in bytes. Raises GitError if a blob is missing."""
        wanted = list(dict.fromkeys(blobs))
        given = "".join(f"{each}\n" for each in wanted).encode()
        out = self._run("cat-file", "--batch-check=%(objectsize)", given=given) if wanted else b""
        if b"missing" in out:
            cure = f"Move {clean(str(self.folder))} away, then sync again."
            raise GitError("the clone is damaged: files of its commits are missing", cure)
        return dict(zip(wanted, map(int, out.split()), strict=True))

    def read(self, blobs: Iterable[str]) -> dict[str, bytes | None]:
        """Return blob id → content; None for blobs larger than `LARGEST`. Raises GitError over 64 MiB in total."""
        sizes = self.sizes(blobs)
        found: dict[str, bytes | None] = dict.fromkeys(sizes)
        small = [each for each, size in sizes.items() if size <= LARGEST]
        if not small:
            return found
        out = self._run("cat-file", "--batch=%(objectsize)", given="".join(f"{each}\n" for each in small).encode())
        at = 0
        for each in small:
            end = out.index(b"\n", at)
            size = int(out[at:end])
            found[each] = out[end + 1 : end + 1 + size]
            at = end + 1 + size + 1
        return found

    def store(self, *contents: bytes) -> list[Blob]:
        """Store the contents of files as blobs, in order, with a single git process."""
        given = b"".join(
            b"blob\nmark :%d\ndata %d\n%s\nget-mark :%d\n" % (at, len(content), content, at)
            for at, content in enumerate(contents, 1)
        )
        return [Blob("100644", blob) for blob in self._text("fast-import", "--quiet", given=given).split()]

    def commit(
        self, parent: str | None, files: Mapping[str, Blob | None], message: str, *, like: str | None = None
    ) -> str:
        """Make a commit without moving a branch, and return its id; None in `files` removes a file.

        Args:
            like: A commit whose author and time to copy; by default the user is the author, now.
        """
        index = {"GIT_INDEX_FILE": str(self.folder / ".git" / f"disttui-index-{os.getpid()}")}
        try:
            self._run("read-tree", *([parent] if parent else ["--empty"]), extra=index)
            lines = [
                f"{blob.mode} {blob.id}\t".encode() + os.fsencode(path)
                if blob
                else b"0 " + b"0" * len(parent or _SHA1) + b"\t" + os.fsencode(path)
                for path, blob in files.items()
            ]
            self._run("update-index", "-z", "--index-info", given=b"".join(line + b"\0" for line in lines), extra=index)
            tree = self._text("write-tree", extra=index)
        finally:
            with suppress(OSError):
                Path(index["GIT_INDEX_FILE"]).unlink()
        who = self._identity()
        if like:
            name, mail, moment = self._text("log", "-1", "--format=%an%n%ae%n%ad", "--date=raw", like).split("\n")
            who |= {"GIT_AUTHOR_NAME": name or "unknown", "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": moment}
        sign = ["-S"] if self._setting("commit.gpgSign", "--type=bool") == "true" else []
        own = self._signers() if sign else []
        parents = ["-p", parent] if parent else []
        given = message.encode("utf-8", "replace")
        return self._run(*own, "commit-tree", *sign, *parents, "-F", "-", tree, given=given, extra=who).decode().strip()

    def message(self, commit: str) -> str:
        """Return the message of a commit."""
        return self._text("log", "-1", "--format=%B", commit)

    def move(self, ref: str, new: str, *old: str | None) -> None:
        """Move a ref to another commit. Raises GitError if `old` is given and the ref is no longer there."""
        self._run("update-ref", ref, new, *(each or "0" * len(new) for each in old))

    def refresh(self) -> None:
        """Update the index, so that git commands of the user see the files as committed."""
        with suppress(GitError):
            self._run("read-tree", "HEAD")
            self._run("update-index", "-q", "--refresh")

    def edited(self) -> list[str]:
        """Return the paths of files that differ from the commit, including new and deleted ones."""
        out = self._run(
            "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"
        )
        return [os.fsdecode(line[3:]) for line in out.split(b"\0")[:-1]]

    def common(self, one: str, other: str) -> str | None:
        """Return the newest common ancestor of two commits, or None."""
        try:
            return self._text("merge-base", one, other).partition("\n")[0] or None
        except GitError:
            return None

    def own_commits(self, head: str, *known: str) -> list[str]:
        """Return the first-parent commits of `head` that are not in the history of a `known` one, oldest first."""
        return self._text("rev-list", "--reverse", "--first-parent", head, *(f"^{each}" for each in known)).split()

    def history(self, path: str | None) -> list[Commit]:
        """Return the newest commits, up to 100, that changed `path`, or any file if None."""
        if self.commit_of("HEAD") is None:
            return []
        only = ["--", path] if path is not None else []
        out = self._run("log", "-z", f"--max-count={_MOST_COMMITS}", "--format=%H%n%an%n%at%n%s", "HEAD", *only)
        found = []
        for entry in filter(None, out.decode("utf-8", "replace").split("\0")):
            commit, author, moment, subject = entry.split("\n", 3)
            found.append(Commit(commit, clean(author), float(moment or 0), clean(subject)))
        return found

    def signature(self, path: str, content: bytes | None = None) -> Signature | None:
        """Return the signature of the newest commit that changed a file or folder; None if it differs from that commit.

        Args:
            content: Of a file; None for what is in the folder of the clone.
        """
        try:
            out = self._text(*self._signers(), "log", "-1", "--format=%H%n%an%n%G?%n%GS", "HEAD", "--", path)
            commit, author, status, signer = (out.split("\n") + 4 * [""])[:4]
            inner = "" if path == "." else path
            kept = self._text("rev-parse", "--quiet", "--verify", "--end-of-options", f"{commit}:{inner}")
            if content is None:
                self._check_unchanged(path)
                now = self._text("rev-parse", "--quiet", "--verify", "--end-of-options", f"HEAD:{inner}")
            else:
                now = self._run("hash-object", "--stdin", "--no-filters", given=content).decode().strip()
        except GitError:
            return None
        return Signature(commit, clean(author), status, clean(signer)) if commit and kept == now else None

    def _check_unchanged(self, path: str) -> None:
        """Raises GitError if files were changed or added since the commit; some are not checked out."""
        with tempfile.TemporaryDirectory() as made:
            index = {"GIT_INDEX_FILE": f"{made}/index"}  # disttui's clones have none
            self._run("read-tree", "HEAD", extra=index)
            self._run(
                "diff", "--quiet", "--no-ext-diff", "--no-textconv", "--diff-filter=d", "HEAD", "--", path, extra=index
            )
            if self._run("ls-files", "--others", "--exclude-standard", "--", path, extra=index):
                raise GitError("files are not committed")

    def _signers(self) -> list[str]:
        """Return options that take programs and keys for signatures from the user's settings, never the clone's."""
        own: dict[str, str] = {}
        with suppress(GitError):
            # With --global, git would skip one of the user's two files, and what they include.
            words = ("config", "--includes", "--null", "--show-scope", "--get-regexp", r"^gpg\.")
            parts = self._run(*words).decode("utf-8", "replace").split("\0")
            for scope, entry in zip(parts[::2], parts[1::2], strict=False):
                name, _, value = entry.partition("\n")
                own |= {name: value} if scope in ("system", "global") else {}
        found = {f"gpg.{kind}.program": own.get(f"gpg.{kind}.program", name) for kind, name in _PROGRAMS.items()}
        found["gpg.openpgp.program"] = own.get("gpg.openpgp.program", own.get("gpg.program", _PROGRAMS["openpgp"]))
        found["gpg.program"] = found["gpg.openpgp.program"]
        found["gpg.ssh.defaultKeyCommand"] = own.get("gpg.ssh.defaultkeycommand", "")
        for name in ("gpg.ssh.allowedSignersFile", "gpg.ssh.revocationFile"):
            file = own.get(name.lower(), "")
            # git resolves a relative path inside the clone.
            found[name] = file if file.startswith(("/", "~", "%(prefix)/")) else os.devnull
        return [word for name, value in found.items() for word in ("-c", f"{name}={value}")]

    def fetch(self) -> None:
        """Fetch the current branch from the remote. Raises RemoteError or TooLargeError."""
        branch = self.branch()  # no other branches: each ref would be a file here
        try:
            self._run("fetch", *_other_side("fetch", self.remote()),
                      "--quiet", "--no-tags", "--no-write-fetch-head", "origin",
                      f"+refs/heads/{branch}:refs/remotes/origin/{branch}", seconds=_NETWORK_SECONDS,
                      extra=_network(self._environ), grows=self.folder / ".git" / "objects")  # fmt: skip
        except TooLargeError:
            raise TooLargeError(self.url()) from None
        except GitError as error:
            if "couldn't find remote ref" not in error.what:
                raise RemoteError(f"cannot reach {self.url()}: {error.what}", _cure(error.what, _LATER)) from None
            self._run("update-ref", "-d", f"refs/remotes/origin/{branch}")  # the remote is empty, or removed it

    def push(self, commit: str, branch: str) -> bool:
        """Push a commit to the remote; return False if another user pushed first. Raises RemoteError."""
        try:
            self._run("push", *_other_side("push", self.remote()),
                      "--quiet", "--porcelain", "--no-verify", "origin", f"{commit}:refs/heads/{branch}",
                      seconds=_NETWORK_SECONDS, extra=_network(self._environ))  # fmt: skip
        except GitError as error:
            if _AGAIN.search(error.what):
                return False
            raise RemoteError(f"cannot send to {self.url()}: {error.what}", _cure(error.what, _LATER)) from None
        return True

    def hooks_left_out(self) -> bool:
        """Whether the remote has hooks that a push does not run because others can write to it."""
        if not _other_side("push", self.remote()):
            return False
        folder = _bare(Path(self.remote().removeprefix("file://")))
        if any(each.suffix != ".sample" and os.access(each, os.X_OK) for each in (folder / "hooks").glob("*")):
            return True
        with suppress(OSError):
            return b"hookspath" in private.read(folder / "config", LARGEST)[0].lower()
        return False

    def remote(self) -> str:
        """Return the remote's address, as configured."""
        return self._setting("remote.origin.url", local=True)

    def url(self) -> str:
        """Return the remote's address, safe to print."""
        return clean(self.remote()) or "its remote"

    def user(self) -> str:
        """Return the user's name as a short word for file names."""
        name = self._identity()["GIT_COMMITTER_NAME"]
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30] or "me"

    def _identity(self) -> dict[str, str]:
        """Return the variables for author and committer, from git's settings or else the login."""
        try:
            login = getpass.getuser()
        except (KeyError, OSError):  # the user id has no name
            login = f"user-{os.getuid()}"
        name = self._environ.get("GIT_AUTHOR_NAME") or self._setting("user.name") or login
        mail = self._environ.get("GIT_AUTHOR_EMAIL") or self._setting("user.email") or f"{login}@{socket.gethostname()}"
        who = {"NAME": name, "EMAIL": mail}
        return {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}

    def _setting(self, name: str, *kind: str, local: bool = False) -> str:
        """Return a git setting or ""; with `local` only the clone's own."""
        try:
            return self._text("config", *(["--local"] if local else []), *kind, "--get", name)
        except GitError:
            return ""

    def _text(self, *words: str, given: bytes = b"", extra: Mapping[str, str] | None = None) -> str:
        return self._run(*words, given=given, extra=extra).decode("utf-8", "replace").rstrip("\n")

    def _run(
        self,
        *words: str,
        given: bytes = b"",
        extra: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
        grows: Path | None = None,
    ) -> bytes:
        return run(
            ["--literal-pathspecs", *words],
            self._environ,
            folder=self.folder,
            given=given,
            extra=extra,
            seconds=seconds,
            grows=grows,
        )


def clone(url: str, folder: Path, environ: Mapping[str, str]) -> Repository:
    """Clone a repository without checking out its files.

    Raises:
        InputError: The address is not allowed.
        TooLargeError: The repository exceeds the limits.
        RemoteError: It is unreachable or cannot be cloned.
    """
    if flaw := url_flaw(url):
        raise InputError(f"{clean(url)!r}: {flaw}", "Give one such as hub:profiles.git or https://hub/profiles.git.")
    # --local would copy objects without checking them.
    words = [
        "clone",
        "--quiet",
        "--no-checkout",
        "--no-tags",
        "--no-recurse-submodules",
        "--no-local",
        "--single-branch",
    ]
    try:
        words += ["--template=", "--origin=origin", *_other_side("fetch", url), "--", url, str(folder)]
        run(words, environ, extra=_network(environ), seconds=_NETWORK_SECONDS, grows=folder)
    except TooLargeError:
        raise TooLargeError(clean(url)) from None
    except GitError as error:
        cure = _cure(error.what, "Try it with git clone.")
        raise RemoteError(f"{clean(url)} cannot be cloned: {error.what}", cure) from None
    attributes = folder / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("* -filter -text -ident -merge -diff !eol -working-tree-encoding\n", encoding="utf-8")
    return Repository(folder, environ)


def is_ours_alone(folder: Path) -> bool:
    """Whether only this user and root can change or replace a clone."""
    return _only_we_write(folder, folder / ".git", folder / ".git/config")


def _only_we_write(*paths: Path) -> bool:
    """Whether paths exist, belong to this user or root, and cannot be written or replaced by others."""
    others = stat.S_IWGRP | stat.S_IWOTH
    try:
        for path in paths:
            real = Path(os.path.realpath(path))
            # Folders of the given path count as well: a link in them could be replaced.
            above = [each.stat() for each in {*real.parents, *path.absolute().parents}]
            own = [one.st_uid in (0, os.geteuid()) for one in (path.lstat(), real.stat(), *above)]
            # In a sticky folder such as /tmp only the owner of an entry can replace it.
            open_ = [one for one in above if one.st_mode & others and not one.st_mode & stat.S_ISVTX]
            if not all(own) or open_ or real.stat().st_mode & others:
                return False
    except OSError:
        return False
    return True


def _other_side(verb: str, url: str) -> list[str]:
    """Return options for a repository on this machine that others can change; [] for all others."""
    address = url.removeprefix("file://")
    if address == url and ":" in url.partition("/")[0]:
        return []  # a remote machine, where its hooks run
    folder = _bare(Path(address))
    parts = [folder, folder / "config", *([folder / "hooks"] if (folder / "hooks").exists() else [])]
    parts += list((folder / "hooks").glob("*"))
    return [] if _only_we_write(*parts) else list(_LOCAL[verb])


def _bare(address: Path) -> Path:
    """Return the folder with a repository's HEAD: `.git` or, if bare, the repository itself."""
    return next((each for each in (address / ".git", address) if (each / "HEAD").exists()), address)


def url_flaw(url: str) -> str:
    """Return why an address must not be passed to git, or ""."""
    if not url or url.startswith("-") or not is_clean(url):
        return "not the address of a repository"
    if "::" in url.partition("/")[0]:
        return "an address that runs a program"
    if re.match(r"[a-z+]+://[^/@]*:[^/@]*@", url):
        return "a password in an address would be stored as text; use a key or git's credential helper"
    return ""


def run(
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    folder: Path | None = None,
    given: bytes = b"",
    extra: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
    grows: Path | None = None,
) -> bytes:
    """Run a git command and return its output. Raises GitError.

    Args:
        grows: A folder that the command fills; enforces `_MOST_STORED` and `_MOST_MEMORY` (TooLargeError).
    """
    options = [word for option in _OPTIONS for word in ("-c", option)]
    at = ["-C", str(folder), f"--git-dir={folder / '.git'}", f"--work-tree={folder}"] if folder else []
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_") or name in _INHERITED}
    # A clone could name a remote, and a program, for missing objects: without `_network`, no protocol is allowed.
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C",
            "GIT_ASKPASS": "true", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}  # fmt: skip
    env.setdefault("PATH", os.defpath)
    env |= extra or {}
    command = ["git", *at, *options, *words]
    try:
        process = subprocess.Popen(
            [*(_BOUNDED if grows else ()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise GitError(*_MISSING) from None
    except OSError as error:
        raise GitError(f"the program git cannot be run: {error.strerror}") from None
    try:
        out, problem = _exchanged(process, given, time.monotonic() + seconds)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        problems: dict[type[BaseException], str] = {
            TimeoutError: f"did not end after {seconds:.0f} s",
            OverflowError: f"prints more than {_MOST >> 20} MiB: not a profile library",
        }
        if why := problems.get(type(error)):
            raise GitError(f"git {_verb(words)} {why}") from None
        raise
    finally:
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream
            with suppress(BrokenPipeError):
                stream.close()
        for left in grows.rglob("tmp_*") if grows and process.returncode else ():
            left.unlink(missing_ok=True)  # git never removes the files of a failed fetch
    if grows and process.returncode and re.search(b"File too large|[Oo]ut of memory", problem):
        raise TooLargeError
    if process.returncode:
        missing = process.returncode == 127  # the shell in `_BOUNDED` found no git
        why = _reason(problem.decode("utf-8", "replace"), out) or f"git {_verb(words)} failed"
        raise GitError(*_MISSING) if missing else GitError(why)
    return out


def _exchanged(process: subprocess.Popen[bytes], given: bytes, until: float) -> tuple[bytes, bytes]:
    """Write `given` to a process and return its stdout and stderr.

    Raises:
        TimeoutError: The process has not ended by `until`, on the monotonic clock.
        OverflowError: It prints more than `_MOST` bytes.
    """
    assert process.stdin and process.stdout and process.stderr
    out, problem, left = bytearray(), bytearray(), memoryview(given)
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ, (out, _MOST + 1))
        waiting.register(process.stderr, selectors.EVENT_READ, (problem, _MOST_WORDS))
        if given:
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while waiting.get_map():
            ready = waiting.select(max(0.0, until - time.monotonic()))
            if time.monotonic() >= until:  # even if data is ready: a remote may print forever
                raise TimeoutError
            for key, _ in ready:
                if key.data is None:
                    try:
                        left = left[os.write(key.fd, left[:65536]) :]
                    except BrokenPipeError:  # the reason is in stderr
                        left = left[:0]
                    if not left:
                        waiting.unregister(key.fileobj)
                        process.stdin.close()
                    continue
                piece = os.read(key.fd, 1 << 20)
                if not piece:
                    waiting.unregister(key.fileobj)
                kept, most = key.data
                kept += piece[: most - len(kept)]
                if len(out) > _MOST:
                    raise OverflowError
    try:
        process.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return bytes(out), bytes(problem)


def _network(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let git reach a remote: ssh, and protocols that cannot run a program in an address."""
    # With the resolver's default limits, a lookup takes 10 s or more without a network.
    names = {"RES_OPTIONS": environ.get("RES_OPTIONS", "timeout:2 attempts:2")}
    return {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", **names, **_ssh(environ)}


def _ssh(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with git's ssh command: the user's own setting, or else ssh in batch mode."""
    if environ.get("GIT_SSH_COMMAND") or environ.get("GIT_SSH"):
        return {}
    with suppress(GitError):
        outside = {"GIT_DIR": os.devnull}  # ignores the repository that the current folder is in
        return {"GIT_SSH_COMMAND": run(["config", "--get", "core.sshCommand"], environ, extra=outside).decode().strip()}
    file = environ.get("DISTTUI_SSH_CONFIG", "")
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    return {"GIT_SSH_COMMAND": shlex.join(["ssh", *(["-F", file] if file else []), *options])}


_LATER = "Your edits stay here; sync again when the repository is reachable."
_NOT_WRITABLE = re.compile("insufficient permission|unable to create temporary|Permission denied$|unable to write")


def _cure(problem: str, otherwise: str) -> str:
    """Return the cure if a repository belongs to another account, or else `otherwise`."""
    if "dubious ownership" in problem:
        return "Have root trust it there for all users: git config --system --add safe.directory PATH."
    if _NOT_WRITABLE.search(problem):
        return (
            "It belongs to another account there. Have root create one for your group: "
            "git init --bare --shared=group PATH; chgrp -R GROUP PATH (docs/library.md)."
        )
    return otherwise


def _verb(words: Sequence[str]) -> str:
    """Return the git subcommand among the words, after the options."""
    at = 0
    while words[at].startswith("-"):
        at += 2 if words[at] == "-c" else 1
    return words[at]


def _reason(problem: str, out: bytes) -> str:
    """Return the most useful lines of an error as one safe line of at most 500 characters."""
    lines = [re.sub(r"^(fatal|error|remote): *", "", line.strip()) for line in problem.splitlines()]
    said = [line for line in lines if line and not line.startswith(_NOISE)]
    said += [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("!")]
    return clean("; ".join(said))[:500]
