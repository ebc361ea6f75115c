"""`python -m tests.bench [RUNS] [PART…]`: the command line against the obvious alternatives, as ratios in one run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence

from tests.bench import (
    app_gigabyte,
    app_keys,
    app_start,
    app_thousand,
    dashboard,
    faults,
    first_step,
    frameworks,
    launchers,
    line_delay,
    mirror_rate,
    overhead,
    probing,
    top,
)
from tests.bench.harness import HEAD

APP = ("app-start", "app-cost", "app-keys", "app-gigabyte", "app-thousand", "app-top")
PARTS = ("first-step", "launchers", "delay", "flood", "overhead", "probe", "mirror", "faults", "frameworks", *APP)


def main(parts: list[str], runs: int) -> None:
    """Run the parts that are named, all of them by default, and print their tables."""
    # An installed program has its bytecode; the first run of each, which does not count, writes it here.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as data:
        os.environ["XDG_DATA_HOME"] = data  # the user's own list of runs stays as it is
        _measure(parts or PARTS, runs)


def _measure(parts: Sequence[str], runs: int) -> None:
    for part in parts:
        print(f"\n## {part}\n", flush=True)
        if part == "first-step":
            print(HEAD, *(first_step.measure(runs, each).row() for each in (1, 4)), sep="\n")
        elif part == "launchers":
            print(HEAD)
            for one in launchers.measure(runs):
                print(one.row(), flush=True)
        elif part == "delay":
            print("| way | median | 99 % | worst | lines |\n|---|---|---|---|---|")
            print(line_delay.summary(line_delay.delays(3)))
        elif part == "flood":
            print(HEAD, line_delay.flood(runs).row(), sep="\n")
        elif part == "probe":
            print(HEAD, *(one.row() for one in probing.measure(runs)), sep="\n")
        elif part == "mirror":
            print(HEAD, *(mirror_rate.measure(runs, link=link).row() for link in ("", mirror_rate.LINK)), sep="\n")
        elif part == "faults":
            print(faults.HEAD, *(one.row() for one in faults.measure(runs)), sep="\n")
        elif part == "frameworks":
            print(HEAD, *(one.row() for one in frameworks.measure(runs)), sep="\n")
        elif part == "overhead":
            cost = overhead.cost()
            print(
                f"supervision {cost.supervision:.2f} s of CPU, ranks {cost.ranks:.2f} s: "
                f"{cost.supervision / cost.ranks:.2%}; while watched, the viewer's end {cost.serve:.2f} s; "
                f"warden and supervisor {cost.memory / 2**20:.0f} MiB a host\n"
            )
            print(f"8 ranks, ten lines a second each: warden and supervisor {overhead.talkative():.2%} of a core\n")
            print(HEAD, overhead.rate(runs).row(), sep="\n")
        elif part == "app-start":
            app_start.main(runs)
        elif part == "app-cost":
            dashboard.main([])
        elif part == "app-keys":
            print(app_keys.row(app_keys.FLOOD, app_keys.measure(300)))
        elif part == "app-gigabyte":
            app_gigabyte.measure(1.0)
        elif part == "app-thousand":
            app_thousand.measure()
        elif part == "app-top":
            top.main()
        else:
            sys.exit(f"{part} is none of {', '.join(PARTS)}")


if __name__ == "__main__":
    runs, *words = sys.argv[1:] if sys.argv[1:2] and sys.argv[1].isdigit() else ["7", *sys.argv[1:]]
    main(words, int(runs))
