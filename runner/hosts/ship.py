"""Builds what is sent to hosts: the node program and the built-in job as zips, and the loader, one line of Python."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

_RUNNER = Path(__file__).parent.parent
_LOADER = ("folders.py", "parcel.py", "loader.py")
"""Files of the node program that make up the loader, in the order in which they run."""

_MAKING = Lock()

COMMAND = (
    'exec {python} -E -c "import sys;sys.path[:1]=[];import signal;signal.alarm(60);exec(sys.stdin.buffer.readline())"'
)
"""The only remote command. Without `!`, backslash, `$` and newline it means the same in every login shell.

-E because a PYTHONHOME or PYTHONPATH that is meant for another Python would prevent this one from starting.
The alarm ends it if the viewer is disconnected before it sends anything: sshd may notice that hours later, or never.
"""

_PLAIN = re.compile(r"[A-Za-z0-9._/~+-]+")


def remote_command(python: str) -> str:
    """Return COMMAND for an interpreter: a name, an absolute path or `~/…`, whose `~` the login shell expands."""
    return COMMAND.format(python=shell_word(python))


def shell_word(path: str) -> str:
    """Quote a path, which has no `'` and `!`, for every login shell; the shell expands a leading `~/`."""
    if _PLAIN.fullmatch(path):
        return path
    home, rest = ("~/", path[2:]) if path.startswith("~/") else ("", path)
    return f"{home}'{rest}'"


@dataclass(frozen=True)
class Parcel:
    """A zip and its name on the host."""

    kind: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Hex digest of the zip."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def packed(self) -> bytes:
        """The bytes to send. The zip itself is uncompressed, since compressing all files together is better."""
        return zlib.compress(self.data, 9)

    @property
    def remote_path(self) -> str:
        """The path on a host whose home folder is writable."""
        return f"~/.cache/disttui/{self.kind}-{self.sha256[:16]}.zip"


def node_parcel() -> Parcel:
    """Return the node program: node/ and protocol/ side by side as here, so that relative imports work unchanged.

    Their parent package is named `_disttui`, which does not shadow a module of the user.
    """
    with _MAKING:  # threads for all hosts call this concurrently
        return _node_parcel()


@cache
def _node_parcel() -> Parcel:
    start = "import sys\nfrom _disttui.node.main import main\nmain(sys.argv[1:])\n"
    folders = {f"_disttui/{name}": _RUNNER / name for name in ("node", "protocol")}
    return Parcel("node", _zip({"_disttui": None, **folders}, start))


@cache
def train_parcel() -> Parcel:
    """Return the built-in training job."""
    return Parcel(
        "train", _zip({"_disttui_train": _RUNNER / "train"}, "from _disttui_train.main import main\nmain()\n")
    )


@cache
def loader_line() -> bytes:
    """Return the loader's source as one line of Python for the remote command to read."""
    sources = [(_RUNNER / "node" / name).read_text(encoding="utf-8") for name in _LOADER]
    return ";".join(f"exec({source!r})" for source in sources).encode() + b"\n"


def _zip(packages: Mapping[str, Path | None], start: str) -> bytes:
    """Zip the .py and .txt files of packages; the same files give the same bytes on every machine.

    Args:
        packages: Folder in the zip → folder of its sources; None makes an empty package.
        start: The source of the zip's `__main__`.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py"), start)
        for package, folder in packages.items():
            if folder is None:
                archive.writestr(zipfile.ZipInfo(f"{package}/__init__.py"), b"")
                continue
            for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".txt")):
                info = zipfile.ZipInfo(f"{package}/{path.relative_to(folder).as_posix()}")
                archive.writestr(info, path.read_bytes())
    return out.getvalue()
