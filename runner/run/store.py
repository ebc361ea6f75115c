"""The local mirror of a run: the same files as on the hosts, byte for byte, under one folder."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from runner.errors import DisttuiError
from runner.node.mirror import CHECKED

KEPT = ".mirror.json"
"""Which generation of which file the mirror holds, and from which offset on."""


def mirrors_folder(environ: Mapping[str, str]) -> Path:
    """Where the mirrors of all runs live: `$XDG_DATA_HOME/disttui/runs`, by default under ~/.local/share."""
    data = environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "disttui" / "runs"


class HostStore:
    """The mirrored files of one host of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._names: dict[int, str] = {}
        self._open: dict[str, BinaryIO] = {}
        self._held: dict[str, list[int]] = self._load()

    def have(self) -> dict[str, list[int]]:
        """What the node program needs to resume: name → [generation, length, CRC-32 of the last bytes]."""
        answer = {}
        for name, (generation, start, length) in self._held.items():
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    file.seek(max(0, length - CHECKED - start))
                    tail = file.read(min(CHECKED, length - start))
            except OSError:
                continue
            if length - start >= min(CHECKED, length):
                answer[name] = [generation, length, zlib.crc32(tail)]
        return answer

    def announce(self, event: Mapping[str, Any]) -> str | None:
        """Take a file announcement; return the name when this is a new generation that starts the file over."""
        name = _safe_name(str(event["name"]))
        self._names[int(event["file"])] = name
        generation, start = int(event["generation"]), int(event["start"])
        held = self._held.get(name)
        if held and held[0] == generation and held[2] == start:
            return None
        self._close(name)
        path = self.folder / name
        if path.exists():
            # What was mirrored of a truncated file stays readable beside the new one.
            path.rename(path.with_name(f"{path.name}~{held[0] if held else 'old'}"))
        self._held[name] = [generation, start, start]
        return name

    def write(self, file: int, offset: int, data: bytes) -> str | None:
        """Append a piece to its file; return the file's name, or None for a piece already held."""
        name = self._names[file]
        held = self._held[name]
        if offset != held[2]:
            return None
        handle = self._open.get(name)
        try:
            if handle is None:
                path = self.folder / name
                path.parent.mkdir(exist_ok=True, mode=0o700)
                handle = self._open[name] = path.open("ab", buffering=0)
            if handle.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise DisttuiError(
                f"{self.folder / name}: {error.strerror}", "Make room for the run's logs and attach again."
            ) from None
        held[2] += len(data)
        return name

    def close(self) -> None:
        """Close the files and note what is held."""
        for name in list(self._open):
            self._close(name)
        part = self.folder / (KEPT + ".part")
        try:
            part.write_text(json.dumps(self._held))
            part.replace(self.folder / KEPT)
        except OSError:
            part.unlink(missing_ok=True)

    def _close(self, name: str) -> None:
        handle = self._open.pop(name, None)
        if handle:
            handle.close()

    def _load(self) -> dict[str, list[int]]:
        try:
            held = json.loads((self.folder / KEPT).read_text())
            return {
                name: value
                for name, value in held.items()
                if (self.folder / name).stat().st_size == value[2] - value[1]
            }
        except (OSError, ValueError):
            return {}


def _safe_name(name: str) -> str:
    """A mirrored file stays inside its folder, whatever the host calls it."""
    parts = name.split("/")
    if len(parts) > 2 or any(part in ("", ".", "..") or os.sep in part or "\0" in part for part in parts):
        raise ValueError(f"a host announced a file named {name!r}")
    return name
