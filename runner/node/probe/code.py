"""Fingerprints of the job's own code on this host, to find differences between hosts before the start."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING, Iterator, List, Optional, Sequence, Tuple

from ...protocol.limits import CODE_DIFF, CODE_UNTRACKED
from ...protocol.names import GIT_FILTERS, filters_off
from ..child import ask

if TYPE_CHECKING:
    from ...protocol.facts import Code, Git
    from ...protocol.requests import CodeState

_MOST_FILES = 1000
_MOST_BYTES = 16 << 20
_SECONDS = 1.0
"""Limits for reading a folder; a folder that exceeds them is not compared."""
_GIT_SECONDS = 3.0
# Read-only, and starts no program of the repository's choice: takes no lock, fetches nothing, enters no submodule.
_GIT = (
    *("env", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0", "git"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
)
_SUBMODULES = "--ignore-submodules=dirty"
_NOT_OURS = frozenset(["__pycache__", "node_modules", "site-packages", "wandb"])
_NCCL = re.compile(rb"""init_process_group\(\s*(?:backend\s*=\s*)?(["'])nccl\1""")
_LAUNCHER = re.compile(
    rb"^[^#\n]*\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate[ -]launch|deepspeed)\b", re.M
)
_OTHER_HOSTS = re.compile(rb"nnodes|num_machines|node.rank|machine.rank|hostfile|rdzv")


class _TooMuch(Exception):
    pass


def facts(
    workdir: str, script: Optional[str], module: str, command: Sequence[str] = (), git: bool = True
) -> Optional[Code]:
    """Return the probe's `code`, None if the job has no file to compare.

    Args:
        script: Path relative to `workdir`, or absolute.
        module: Its name; compared if it is in `workdir`.
        command: Words; the first that names a text file is treated as a script.
        git: Also ask git, which may take seconds.
    """
    script = script or _named(workdir, command)
    if script:
        path = _path(workdir, script)
        folder = os.path.dirname(path)
    elif module:
        path = os.path.join(workdir, *module.split(".")) + ".py"
        folder = os.path.join(workdir, module.split(".", maxsplit=1)[0])
    else:
        return None
    text = _read(path, _MOST_BYTES)
    # Files next to a script in the home folder may belong to anything.
    at_home = os.path.realpath(folder) == os.path.realpath(os.path.expanduser("~"))
    digest, files = (None, 0) if at_home else _python_files(folder)
    if text is None and not files:
        return None
    found = _NCCL.search(text or b"")
    shell = not path.endswith(".py") and not _OTHER_HOSTS.search(text or b"")
    launcher = _LAUNCHER.search(text or b"") if shell else None
    return {
        "file": script,
        "script": None if text is None else hashlib.sha256(text).hexdigest(),
        "folder": digest,
        "git": _git(folder) if git else None,
        "nccl_line": (text or b"").count(b"\n", 0, found.start()) + 1 if found else None,
        "launcher_line": (text or b"").count(b"\n", 0, launcher.start()) + 1 if launcher else None,
    }


def _path(workdir: str, name: str) -> str:
    return os.path.normpath(os.path.join(workdir, os.path.expanduser(name)))


def _named(workdir: str, command: Sequence[str]) -> Optional[str]:
    """Return the first word that names a text file; not a program found through PATH or installed by the system."""
    for at, word in enumerate(command[:100]):
        if at or ("/" in word and not os.path.isabs(word)):
            text = _read(_path(workdir, word), _MOST_BYTES)
            if text is not None and b"\0" not in text[:8192]:
                return word
    return None


def _python_files(folder: str) -> Tuple[Optional[str], int]:
    """Return the SHA-256 of all names and contents below a folder, and their number; None if there are too many."""
    whole = hashlib.sha256()
    files = size = 0
    try:
        for path in _walk(folder):
            text = _read(path, _MOST_BYTES - size)
            files += 1
            if text is None or files > _MOST_FILES:
                return None, files
            size += len(text)
            name = os.path.relpath(path, folder).encode("utf-8", "surrogateescape")
            whole.update(b"%d %s %d " % (len(name), name, len(text)) + text)
    except _TooMuch:
        return None, files
    return whole.hexdigest(), files


def _walk(folder: str) -> Iterator[str]:
    """Yield the Python files below a folder in an order that is the same everywhere; raises _TooMuch."""
    deadline = time.monotonic() + _SECONDS
    entries = 0
    for path, folders, names in os.walk(folder):
        entries += len(folders) + len(names)
        if entries > 20_000 or time.monotonic() > deadline:
            raise _TooMuch
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NOT_OURS
            and not os.path.exists(os.path.join(path, name, "pyvenv.cfg"))
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield os.path.join(path, name)


def _read(path: str, most: int) -> Optional[bytes]:
    """Return the content of a regular file, None if it cannot be read or is larger than `most` bytes."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            text = file.read(most + 1)
    except OSError:
        return None
    return text if len(text) <= most else None


def state(workdir: str, script: Optional[str]) -> CodeState:
    """Return what is checked out in the job's folder, and how its files differ from that.

    Args:
        script: Path relative to `workdir`, or absolute; its folder is used if `workdir` is not in a repository.
    """
    folder = os.path.realpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(workdir)))
    home = os.path.realpath(os.path.expanduser("~"))
    if script and (folder == home or not _is_in_repository(folder)):
        folder = os.path.dirname(os.path.realpath(os.path.join(folder, os.path.expanduser(script))))
    found: CodeState = {"folder": folder, "head": None, "diff": "", "cut": False, "untracked": []}
    # Changes anywhere in a home folder are private.
    git = _git(folder) if folder != home and os.path.isdir(folder) else None
    if git is None:
        return found
    found["head"] = git["head"]
    try:
        if git["dirty"]:
            words = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", _SUBMODULES, "HEAD", "--", "."]
            answer = ask([*_GIT, *_without_filters(folder), *words], _GIT_SECONDS, folder)
            found["cut"] = answer.code != 0 or len(answer.out) > CODE_DIFF
            found["diff"] = answer.out[:CODE_DIFF]
        words = ["ls-files", "--others", "--exclude-standard", "-z", "--", "."]
        names = ask([*_GIT, *words], _GIT_SECONDS, folder).out.split("\0")
        found["untracked"] = [name[:1000] for name in names if name][:CODE_UNTRACKED]
    except OSError:
        pass
    return found


def _is_in_repository(folder: str) -> bool:
    above = os.path.realpath(folder)
    while not os.path.exists(os.path.join(above, ".git")):
        if os.path.dirname(above) == above:
            return False
        above = os.path.dirname(above)
    return True


def _without_filters(folder: str) -> List[str]:
    """The git options of `filters_off`. Raises OSError if a filter cannot be switched off."""
    parts = ask([*_GIT, *GIT_FILTERS], _GIT_SECONDS, folder)
    listed = parts.out
    if parts.code == 129:  # before git 2.26, which does not tell who set a filter: switch off all
        parts = ask([*_GIT, *(word for word in GIT_FILTERS if word != "--show-scope")], _GIT_SECONDS, folder)
        listed = "".join("local\0%s\0" % name for name in parts.out.split("\0") if name)
    if parts.code not in (0, 1):
        raise OSError("git config has failed")
    try:
        return filters_off(listed)
    except ValueError as error:
        raise OSError(str(error)) from None


def _git(folder: str) -> Optional[Git]:
    """Return the commit that is checked out, and whether files below the folder differ from it."""
    if not _is_in_repository(folder):
        return None
    words = ["status", "--porcelain=v2", "--branch", "--untracked-files=no", _SUBMODULES, "--", "."]
    try:
        answer = ask([*_GIT, *_without_filters(folder), *words], _GIT_SECONDS, folder)
    except OSError:
        return None
    found = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", answer.out, re.MULTILINE)
    if answer.code != 0 or not found:
        return None
    dirty = any(line and not line.startswith("#") for line in answer.out.splitlines())
    return {"head": found.group(1), "dirty": dirty}
