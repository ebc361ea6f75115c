"""A Python traceback with the user's frames in full and library frames folded. Pure."""

from __future__ import annotations

import re
from itertools import groupby

from disttui.runner.diagnose.frames import Frame
from disttui.runner.formatting import amount
from disttui.runner.text import clean_lines

_FRAME = re.compile(r'^(\s*(?:\| )?)File "([^"]+)", line (\d{1,9})(?:, in (.*))?$')
_CHAINED = re.compile(r"^(The above exception was the direct cause|During handling of the above exception)")


def fold_traceback(text: str) -> list[str]:
    """The lines, safe to print, with runs of library frames as one; all frames where none is the user's."""
    lines = clean_lines(text.rstrip()).split("\n")
    frames = [_frame(line) for line in lines]
    if not any(frame and not frame.library for frame in frames):
        return lines
    hidden, labelled = False, []
    for line, frame in zip(lines, frames, strict=True):
        # The source line of a frame follows it, indented.
        hidden = frame.library if frame else hidden and line.startswith("    ")
        labelled.append((hidden, line, frame))
    out: list[str] = []
    for library, group in groupby(labelled, lambda one: one[0]):
        if not library:
            out += [line for _, line, _ in group]
            continue
        *rest, last = [frame for _, _, frame in group if frame]
        count = amount(len(rest) + 1, "frame")
        out.append(f"  … {count} of libraries, the last in {last.place} {last.function}".rstrip())
    return out


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
