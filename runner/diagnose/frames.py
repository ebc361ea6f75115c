"""Stack frames: whose they are, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.protocol.files import RankStacks
from runner.text import clean

_LIBRARY = re.compile(r"[\\/](site-packages|dist-packages)[\\/]|[\\/]lib(64)?[\\/]python\d|^<")
_FAULT_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d{1,9}|\?\?\?) in (.*)$')


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def library(self) -> bool:
        """Whether it is library code: torch, the standard library, installed packages."""
        return bool(_LIBRARY.search(self.file))

    @property
    def place(self) -> str:
        """`train.py:83`."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


def main_frames(answer: RankStacks) -> tuple[Frame, ...]:
    """The main thread's stack out of a rank's answer (docs/formats.md, "Stacks"), innermost last; empty if unknown."""
    for thread in answer.get("threads", []):
        if thread.get("main"):
            return tuple(_frame(one) for one in thread.get("frames", []))
    return _faulthandler_frames(answer.get("text", ""))


def own(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, else the innermost in a file, else of all."""
    mine = [frame for frame in frames if not frame.library]
    chosen = mine or in_files(frames) or frames
    return chosen[-1] if chosen else None


def in_files(frames: Sequence[Frame]) -> list[Frame]:
    """The frames with a file to look at, unlike <string> and <frozen importlib._bootstrap>."""
    return [frame for frame in frames if not frame.file.startswith("<")]


def folded(frames: Iterable[Frame]) -> list[str]:
    """The stack as lines from the user's first frame on, runs of library frames as one line."""
    lines: list[str] = []
    run: list[Frame] = []
    stack = list(frames)
    first = next((index for index, frame in enumerate(stack) if not frame.library), 0)
    for frame in stack[first:]:
        if frame.library:
            run.append(frame)
            continue
        lines += _fold(run)
        run = []
        lines.append(f"{frame.file}:{frame.line} {frame.function}")
    return lines + _fold(run)


def _fold(run: Sequence[Frame]) -> list[str]:
    if not run:
        return []
    more = f"… {len(run) - 1} more of libraries, then " if len(run) > 1 else ""
    return [f"{more}{run[-1].place} {run[-1].function}"]


def _frame(one: Mapping[str, Any]) -> Frame:
    line = one.get("line")
    return Frame(
        clean(str(one.get("file", "?")))[:400],
        line if isinstance(line, int) else 0,
        clean(str(one.get("function", "?")))[:100],
    )


def _faulthandler_frames(text: str) -> tuple[Frame, ...]:
    """The thread that took the signal, which is the main one, from faulthandler's words (innermost first)."""
    blocks: dict[str, list[Frame]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            name = line
            blocks[name] = []
        found = _FAULT_FRAME.match(line)
        if found and name:
            number = found.group(2)
            blocks[name].append(
                Frame(clean(found.group(1)), int(number) if number.isdecimal() else 0, clean(found.group(3)))
            )
    current = [frames for title, frames in blocks.items() if title.startswith("Current")]
    chosen = (current or list(blocks.values()) or [[]])[-1]
    # What is below the user's script is the rank shim.
    shim = next((index for index, frame in enumerate(chosen) if "/_disttui/" in frame.file), len(chosen))
    return tuple(reversed(chosen[:shim]))
