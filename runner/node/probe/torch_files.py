"""The versions of an interpreter and its torch, read from files: importing torch would take seconds.

Sources: PEP 405 (pyvenv.cfg), the documentation of `site` (folders, .pth files), PEP 376 (dist-info folders).
"""

from __future__ import annotations

import glob
import os
import re
import struct
import sys
from typing import BinaryIO, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..disk import read_text

_FULL_VERSION = re.compile(r"\d+\.\d+\.\d+")


class PythonLayout(NamedTuple):
    """An interpreter as its files show it: prefix, full version, and the folders that packages come from."""

    prefix: str
    version: str
    folders: List[str]


def layout(path: str) -> Optional[PythonLayout]:
    """Return the layout of the interpreter at `path`, None where the files do not show all of it (a pyenv shim)."""
    environment = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    config = _pyvenv(environment)
    if config is None:
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(path)))
        short = _short_version(prefix, os.path.realpath(path))
        version = _full_version(prefix, short)
        return PythonLayout(prefix, version, _site_folders(prefix, short, user=True)) if version else None
    # virtualenv and uv say version_info where venv says version.
    match = _FULL_VERSION.match(config.get("version", config.get("version_info", "")))
    if match is None:
        return None
    short = ".".join(match.group().split(".")[:2])
    shares = config.get("include-system-site-packages") == "true"
    folders = _site_folders(environment, short, user=shares)
    if shares:
        base = os.path.realpath(os.path.join(config.get("home", ""), "python" + short))
        folders += _site_folders(os.path.dirname(os.path.dirname(base)), short, user=False)
    return PythonLayout(environment, match.group(), folders)


class Torch(NamedTuple):
    """A torch as its files describe it: its folder, its versions of torch, CUDA and NCCL, and whether it has MPI."""

    folder: str
    version: str
    cuda: Optional[str]
    nccl: Optional[str]
    mpi: Optional[bool]
    """None: its libraries do not show it."""


def torch_in(folders: Sequence[str]) -> Optional[Torch]:
    """Return the first torch in `folders`, or None."""
    for folder in folders:
        text = read_text(os.path.join(folder, "torch", "version.py"))
        version = _assigned(text, "__version__")
        if version:
            libraries = needed(os.path.join(folder, "torch", "lib", "libtorch_cpu.so"))
            mpi = None if libraries is None else any(name.startswith("libmpi") for name in libraries)
            return Torch(os.path.realpath(folder), version, _assigned(text, "cuda"), _nccl(folders), mpi)
    return None


def _pyvenv(prefix: str) -> Optional[Dict[str, str]]:
    text = read_text(os.path.join(prefix, "pyvenv.cfg"))
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs} if text else None


def _short_version(prefix: str, path: str) -> str:
    """Return `3.11` by the program's name, else by the only standard library under its prefix."""
    named = re.fullmatch(r"python(3\.\d+)t?", os.path.basename(path))
    found = glob.glob(os.path.join(glob.escape(prefix), "lib*", "python3.*", "os.py"))
    libraries = {os.path.basename(os.path.dirname(name))[len("python") :] for name in found}
    if named and named.group(1) in libraries:
        return named.group(1)
    return libraries.pop() if not named and len(libraries) == 1 else ""


def _full_version(prefix: str, short: str) -> str:
    """Return `3.11.7` from the C header, which conda, pyenv and uv install, or if it is the running Python."""
    if not short:
        return ""
    header = read_text(os.path.join(prefix, "include", "python" + short, "patchlevel.h"))
    match = re.search(r'^#define PY_VERSION\s+"([^"]+)"', header, re.MULTILINE)
    if match:
        return match.group(1)
    if os.path.realpath(sys.base_prefix) == prefix and short == "%d.%d" % sys.version_info[:2]:
        return "%d.%d.%d" % sys.version_info[:3]
    return ""


def _site_folders(prefix: str, short: str, user: bool) -> List[str]:
    name = "python" + short
    folders = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if user:
        folders.append(os.path.expanduser(f"~/.local/lib/{name}/site-packages"))
    # Debian's own Python (prefix /usr) uses dist-packages and puts pip's folder first.
    folders += [
        os.path.join(prefix, *parts)
        for parts in (
            ("local", "lib", name, "dist-packages"),
            ("lib", name, "site-packages"),
            ("lib64", name, "site-packages"),
            ("lib", "python3", "dist-packages"),
        )
    ]
    folders = [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
    return folders + [extra for folder in folders for extra in _pth(folder)]


def _pth(folder: str) -> List[str]:
    """Return the folders that .pth files add; lines that are code are not run."""
    found = []
    for name in sorted(glob.glob(os.path.join(glob.escape(folder), "*.pth"))):
        for line in read_text(name).splitlines():
            path = os.path.join(folder, line.strip())
            if line.strip() and not line.startswith(("#", "import ", "import\t")) and os.path.isdir(path):
                found.append(path)
    return found


def _assigned(text: str, name: str) -> Optional[str]:
    match = re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]{{1,80}})['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def _nccl(folders: Sequence[str]) -> Optional[str]:
    """Return the version of the nvidia-nccl wheel, or of conda's nccl package."""
    for folder in folders:
        wheels = glob.glob(os.path.join(glob.escape(folder), "nvidia_nccl_cu*-*.dist-info"))
        conda = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(folder))), "conda-meta")
        for name in wheels + glob.glob(os.path.join(glob.escape(conda), "nccl-[0-9]*.json")):
            return os.path.basename(name).split("-")[1].replace(".dist", "")
    return None


_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5
_MOST = 1 << 20
"""Bytes of a table; torch's have some ten thousand."""


def needed(path: str) -> Optional[List[str]]:
    """Return their names, None where it is no 64-bit little-endian ELF file, or cannot be read."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return _needed(file)
    except (OSError, struct.error, StopIteration, ValueError, OverflowError):
        return None


def _needed(file: BinaryIO) -> Optional[List[str]]:
    """Sources: the System V ABI, chapters 4 and 5, and its supplement for 64 bits."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    table = _read(file, start, size * count)
    # Type, offset in the file, address, size in the file.
    segments = [
        (struct.unpack_from("<I", table, at)[0], *struct.unpack_from("<QQ8xQ", table, at + 8))
        for at in range(0, len(table), size)
    ]
    _, at, _, length = next(one for one in segments if one[0] == _DYNAMIC)
    entries: List[Tuple[int, int]] = list(struct.iter_unpack("<qQ", _read(file, at, length - length % 16)))
    address = next(value for tag, value in entries if tag == _STRINGS)
    offset = next(
        at + address - begin for kind, at, begin, length in segments if kind == _LOAD and 0 <= address - begin < length
    )
    names = [_read(file, offset + value, 256).partition(b"\0")[0] for tag, value in entries if tag == _NEEDED]
    return [name.decode("utf-8", "replace") for name in names]


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    if size > _MOST:
        raise ValueError("too large for a table")
    file.seek(at)
    return file.read(size)
