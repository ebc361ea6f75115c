"""`python -m tests.bench.app_keys [KEYS]`: from key to screen, while 64 ranks print 50 lines a second each, all shown.

A character is typed into the log's find prompt, and the time until it stands on the terminal is taken.
"""

from __future__ import annotations

import random
import string
import sys
from statistics import quantiles
from typing import NamedTuple

from tests.bench.dashboard import WARM, flooded
from tests.bench.screen import Screen

FLOOD = "64 ranks × 50 lines/s"


class Delays(NamedTuple):
    """Milliseconds."""

    median: float
    p99: float
    worst: float


def measure(keys: int) -> Delays:
    """Type while 64 ranks print."""
    with flooded(8, 8, 64, 50) as app:
        app.drain(WARM)
        return typing(app, keys)


def typing(app: Screen, keys: int) -> Delays:
    """Type into the find prompt, with pauses as a person makes them."""
    chance, taken = random.Random(1), []
    app.press("/")
    app.drain(1.0)
    typed = ""
    for _ in range(keys):
        if len(typed) == 20:
            app.press("\x15")
            app.drain(0.5)
            typed = ""
        letter = chance.choice(string.ascii_lowercase)
        typed += letter
        app.press(letter)
        taken.append(app.until(typed) * 1000)
        app.drain(chance.uniform(0.05, 0.3))
    taken.sort()
    return Delays(taken[len(taken) // 2], quantiles(taken, n=100)[98], taken[-1])


def row(what: str, delays: Delays) -> str:
    """A line of the table."""
    seen = f"median {delays.median:.0f} ms | 99 % {delays.p99:.0f} ms | worst {delays.worst:.0f} ms"
    return f"| key to screen, {what} | {seen} |"


if __name__ == "__main__":
    print(row(FLOOD, measure(int(sys.argv[1]) if len(sys.argv) > 1 else 300)))
