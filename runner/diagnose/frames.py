"""Parses stacks and tracebacks, separates user code from libraries, and folds library frames. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby

from disttui.runner.formatting import amount
from disttui.runner.protocol.files import RankStacks, StackFrame
from disttui.runner.text import clean, clean_lines

_LIBRARY = re.compile(r"[\\/](site-packages|dist-packages)[\\/]|[\\/]lib(64)?[\\/]python\d|^<")
_PACKAGE = re.compile(r"[\\/](?:site|dist)-packages[\\/]([^\\/]+)")
_FAULT_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d{1,9}|\?\?\?) in (.*)$')


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def library(self) -> bool:
        """Whether it is library code: an installed package or the standard library."""
        return bool(_LIBRARY.search(self.file))

    @property
    def place(self) -> str:
        """File name and line, such as `train.py:83`."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


def main_frames(answer: RankStacks) -> tuple[Frame, ...]:
    """The main thread's stack in a rank's answer (docs/formats.md, "Stacks"), innermost last; empty if unknown."""
    for thread in answer.get("threads", []):
        if thread.get("main"):
            return tuple(_frame(one) for one in thread.get("frames", []))
    return faulthandler_frames(answer.get("text", ""))


def own(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code, else the innermost one in a file, else the innermost of all."""
    chosen = users(frames) or in_files(frames) or frames
    return chosen[-1] if chosen else None


def users(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the user's code: those outside libraries, else those of the first installed package but torch."""
    if mine := [frame for frame in frames if not frame.library]:
        return mine
    packages = [(found[1], frame) for frame in frames if (found := _PACKAGE.search(frame.file))]
    packages = [(name, frame) for name, frame in packages if name != "torch"]
    return [frame for name, frame in packages if name == packages[0][0]]


def in_files(frames: Sequence[Frame]) -> list[Frame]:
    """The frames in actual files, unlike <string> and <frozen importlib._bootstrap>."""
    return [frame for frame in frames if not frame.file.startswith("<")]


def folded(frames: Sequence[Frame]) -> list[str]:
    """The stack as lines, from the user's first frame on, with each series of library frames as one line."""
    lines: list[str] = []
    mine = users(frames)
    stack = list(dropwhile(lambda frame: frame not in mine, frames)) or frames
    for library, run in groupby(stack, lambda frame: frame not in mine):
        if not library:
            lines += [f"{frame.file}:{frame.line} {frame.function}" for frame in run]
            continue
        *rest, last = run
        lines.append((f"… {len(rest)} more of libraries, then " if rest else "") + f"{last.place} {last.function}")
    return lines


def forked(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames of a forked process, without those inherited from its parent."""
    begin = [i for i, frame in enumerate(frames) if frame.file.endswith("multiprocessing/process.py")]
    return frames[begin[-1] + 1 :] if begin else frames


def _frame(one: StackFrame) -> Frame:
    return Frame(clean(one.get("file", "?"))[:400], one.get("line", 0), clean(one.get("function", "?"))[:100])


def faulthandler_frames(text: str) -> tuple[Frame, ...]:
    """The frames, innermost last, of the thread that got the signal, the main one, in faulthandler's output."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            threads.append((line.startswith("Current"), []))
        elif threads and (found := _FAULT_FRAME.match(line)):
            file, number, function = found.groups()
            threads[-1][1].append(Frame(clean(file), int(number) if number.isdecimal() else 0, clean(function)))
    _, chosen = max(threads, key=lambda one: one[0], default=(False, []))
    # The outermost frames, below the user's script, are the rank shim's.
    shim = next((index for index, frame in enumerate(chosen) if "/_disttui/" in frame.file), len(chosen))
    return tuple(reversed(chosen[:shim]))


_FRAME = re.compile(r'^(\s*(?:\| )?)File "([^"]+)", line (\d{1,9})(?:, in (.*))?$')
_CHAINED = re.compile(r"^(The above exception was the direct cause|During handling of the above exception)")


_REMOTE = re.compile(
    r'(Traceback \(most recent call last\):\n.*?)\n"""\n\nThe above exception was the direct', re.DOTALL
)


def fold_traceback(text: str) -> list[str]:
    """The sanitised lines, with each series of library frames as one line; all frames if none is the user's."""
    lines = clean_lines(text.rstrip()).split("\n")
    frames = [_traceback_frame(line) for line in lines]
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
    """The last line of every exception of a chain, in the order in which they were raised."""
    lines = text.rstrip().splitlines()
    ends = [index for index, line in enumerate(lines) if _CHAINED.match(line)]
    found = []
    for end in [*ends, len(lines)]:
        before = [line for line in lines[:end] if line.strip()]
        if before:
            found.append(before[-1].strip())
    return found


def frames(text: str) -> tuple[Frame, ...]:
    """The frames of the last exception in a chain, innermost last; for a process pool, those in its worker."""
    remote = _REMOTE.search(text)
    lines = (remote[1] if remote else text).rstrip().splitlines()
    start = max((index for index, line in enumerate(lines) if _CHAINED.match(line)), default=-1) + 1
    return tuple(frame for line in lines[start:] if (frame := _traceback_frame(line)))


def _traceback_frame(line: str) -> Frame | None:
    found = _FRAME.match(line)
    return Frame(found.group(2), int(found.group(3)), found.group(4) or "") if found else None
