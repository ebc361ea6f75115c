"""Formats numbers (durations, times, counts, bytes) and tables."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from disttui.runner.protocol.metrics import NOT_FINITE

_Said = TypeVar("_Said", bound=Hashable)

_AGES = 1e11
"""Seconds from which on a duration is impossible: some 3,000 years."""


def number(value: Any) -> float | None:
    """`value` as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return found if math.isfinite(found) else None


def figure(value: Any) -> str | None:
    """A metric with four digits; a text such as nan for one that is not finite; None if it is not a metric."""
    known = number(value)
    return f"{known:.4g}" if known is not None else value if value in NOT_FINITE else None


_SIGNALS = {
    "SIGKILL": "killed, by the kernel's out-of-memory killer or by kill -9",
    "SIGSEGV": "invalid memory access in native code",
    "SIGABRT": "native code aborted (an assertion, or NCCL's watchdog)",
    "SIGBUS": "bus error, as from DataLoader workers when /dev/shm is full",
    "SIGTERM": "ended from outside disttui",
    "SIGILL": "illegal instruction, as from a library built for another CPU",
    "SIGFPE": "arithmetic error in native code",
}


def code_words(code: Any) -> str:
    """The text for an exit code or signal: `exit code 3`, `SIGKILL (…)`."""
    if not isinstance(code, int):
        return "an unknown exit code"
    if code >= 0:
        signals = {128 + signal.Signals[name]: f"{name} ({meaning})" for name, meaning in _SIGNALS.items()}
        return f"exit code {code}{f', as shells report {signals[code]}' if code in signals else ''}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    meaning = _SIGNALS.get(name)
    return f"{name} ({meaning})" if meaning else name


def duration(seconds: float) -> str:
    """Seconds as `0:37`, `12:31`, `1:02:07` or `3 d 04:11`; `?` for an impossible duration."""
    known = number(seconds)
    if known is None or known >= _AGES:
        return "?"
    whole = max(0, int(known))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def when(moment: float) -> str:
    """A Unix time as `14:03:11` today, else `2026-03-01 14:03`; `?` for an impossible time."""
    today = _local(moment, "%Y-%m-%d") == time.strftime("%Y-%m-%d")
    return _local(moment, "%H:%M:%S" if today else "%Y-%m-%d %H:%M")


def timestamp(moment: float) -> str:
    """A Unix time as `2026-03-01 14:03:11`; `?` for an impossible time."""
    return _local(moment, "%Y-%m-%d %H:%M:%S")


def clock(moment: float) -> str:
    """A Unix time as `14:03:11`, without the day; `?` for an impossible time."""
    return _local(moment, "%H:%M:%S")


def _local(moment: float, form: str) -> str:
    known = number(moment)
    try:
        return "?" if known is None else time.strftime(form, time.localtime(known))
    except (OverflowError, ValueError, OSError):
        return "?"


def count(value: float) -> str:
    """A number as `940`, `41.2k` or `1.3M`; `?` for anything but a finite number."""
    if number(value) is None:
        return "?"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def rough(seconds: float) -> str:
    """Seconds as `moments`, `12 min`, `3.4 h` or `12 days`."""
    if seconds < 60:
        return "moments"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{count(round(seconds / 86400))} days"


def amount(number_of: int, noun: str) -> str:
    """A number with its noun: `1 rank`, `12 ranks`, `2 processes`."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number_of:,} {noun if number_of == 1 else many}"


def ranges(numbers: Iterable[int], separator: str = ", ") -> str:
    """Numbers as text: `1`, `0, 2`, `0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return separator.join(f"{run[0]}-{run[-1]}" if len(run) > 2 else separator.join(map(str, run)) for run in runs)


def each_once(said: Iterable[tuple[str | None, _Said]]) -> Iterator[tuple[str, _Said]]:
    """Merge equal items of several hosts: yield (host names such as `node1, node2` or "", item)."""
    hosts: dict[_Said, dict[str, None]] = {}
    for host, what in said:
        hosts.setdefault(what, {}).update({host: None} if host else {})
    for what, names in hosts.items():
        yield ", ".join(names), what


def gibibytes(value: float) -> str:
    """Bytes as `11.2 GiB`, or `640 MiB` below 1 GiB; `?` for anything but a finite number."""
    if number(value) is None:
        return "?"
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def fit(text: str, width: int) -> str:
    """Cut the lines of a text to `width` characters; a cut line ends with `…`."""
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in text.split("\n"))


def table(head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head of (title, `<` or `>` for the alignment); columns without any text are omitted."""
    lines = [[title for title, _ in head], *rows]
    columns = [index for index in range(len(head)) if any(line[index] for line in lines)]
    widths = {index: max(len(line[index]) for line in lines) for index in columns}
    return "\n".join(
        "  ".join(f"{line[index]:{head[index][1]}{widths[index]}}" for index in columns).rstrip() for line in lines
    )
