"""A Python traceback with the user's frames in full and library frames folded. Pure."""

from __future__ import annotations

import re

from runner.diagnose.frames import Frame
from runner.text import clean_lines

_FRAME = re.compile(r'^(\s*(?:\| )?)File "([^"]+)", line (\d{1,9})(?:, in (.*))?$')
_CHAINED = re.compile(r"^(The above exception was the direct cause|During handling of the above exception)")


def fold_traceback(text: str) -> list[str]:
    """The lines, safe to print, with runs of library frames as one; all frames where none is the user's."""
    lines = clean_lines(text.rstrip()).split("\n")
    frames = [_frame(line) for line in lines]
    if not any(frame and not frame.library for frame in frames):
        return lines
    out: list[str] = []
    folded: list[Frame] = []
    hidden = False
    for line, frame in zip(lines, frames, strict=True):
        if frame:
            hidden = frame.library
            if hidden:
                folded.append(frame)
                continue
        elif hidden and line.startswith("    "):
            continue  # the source line of a hidden frame
        hidden = False
        out += _fold(folded)
        folded = []
        out.append(line)
    return out + _fold(folded)


def blocks(text: str) -> list[str]:
    """The last line of every exception of a chain, the first raised first."""
    lines = text.rstrip().splitlines()
    ends = [index for index, line in enumerate(lines) if _CHAINED.match(line)]
    found = []
    for end in [*ends, len(lines)]:
        before = [line for line in lines[:end] if line.strip()]
        if before:
            found.append(before[-1].strip())
    return found


def frames(text: str) -> tuple[Frame, ...]:
    """The frames of the exception that was raised last, innermost last."""
    lines = text.rstrip().splitlines()
    start = max((index for index, line in enumerate(lines) if _CHAINED.match(line)), default=-1) + 1
    return tuple(frame for line in lines[start:] if (frame := _frame(line)))


def _frame(line: str) -> Frame | None:
    found = _FRAME.match(line)
    return Frame(found.group(2), int(found.group(3)), found.group(4) or "") if found else None


def _fold(frames: list[Frame]) -> list[str]:
    if not frames:
        return []
    last = frames[-1]
    count = "1 frame" if len(frames) == 1 else f"{len(frames)} frames"
    return [f"  … {count} of libraries, the last in {last.place} {last.function}".rstrip()]
