"""The results of `disttui check`, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from disttui.runner.formatting import count
from disttui.runner.planning.checks import Check, CheckReport, HostFigures, latency
from disttui.runner.render.tables import table

_SIGNS = {"ok": "✓", "info": "·", "warning": "!", "error": "✗"}


def check_lines(check: Check) -> list[str]:
    """One conclusion: what was observed, why it matters, what to do."""
    hosts = " and ".join(check.hosts)
    lines = [f"{_SIGNS[check.level]} {f'{hosts}: ' if hosts else ''}{check.what} [{check.id}]"]
    if check.why:
        lines.append(f"    {check.why}")
    if check.cure:
        lines.append(f"  → {check.cure}")
    return lines


def end_lines(checked: CheckReport) -> list[str]:
    """The tables after all conclusions, and the result."""
    lines: list[str] = []
    reached = list(dict.fromkeys(way.source for way in checked.ways))
    if checked.differences:
        names = [name for name in checked.hosts if not _unreached(checked, name)]
        rows = [
            [f"{_SIGNS[one.level]} {one.name}", *(value or "-" for value in one.values), one.why]
            for one in checked.differences
        ]
        lines += ["", table([(title, "<") for title in ("differs", *names, "")], rows)]
    if reached:
        rows = [[f"from {one}", *(_cell(checked, one, other) for other in reached)] for one in reached]
        lines += ["", table([(title, "<") for title in ("connects in ms", *(f"to {name}" for name in reached))], rows)]
    if checked.figures:
        titles = ("host", "ranks", "computes", "memory", *(["to GPU"] if any(f.copy for f in checked.figures) else []),
                  "network", "latency", "device")  # fmt: skip
        rows = [[value for title, value in _figures(one) if title in titles] for one in checked.figures]
        lines += ["", table([(title, "<" if title in ("host", "device") else ">") for title in titles], rows)]
    if checked.advice:
        lines += ["", checked.advice]
    counts = {level: sum(one.level == level for one in checked.checks) for level in ("error", "warning")}
    hosts = len(checked.hosts)
    found = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
    sign = "✓" if checked.passed else "✗"
    lines += ["", f"{sign} {hosts} host{'s' if hosts > 1 else ''} checked: {found or 'nothing found that stops a run'}"]
    return lines


def _figures(one: HostFigures) -> Iterator[tuple[str, str]]:
    """The columns of a measured host."""
    yield "host", one.host
    yield "ranks", str(one.ranks)
    for title, rate, unit in (
        ("computes", one.product, "FLOP/s"), ("memory", one.memory, "B/s"), ("to GPU", one.copy, "B/s"),
        ("network", one.network, "B/s"),
    ):  # fmt: skip
        yield title, f"{count(rate)}{unit}" if rate else "-"
    yield "latency", f"{one.ms:.2f} ms" if one.ms else "-"
    yield "device", one.device


def checked_json(checked: CheckReport) -> dict[str, object]:
    """The end of a check for programs; the conclusions have been printed one by one."""
    return {
        "type": "end",
        "passed": checked.passed,
        "hosts": list(checked.hosts),
        "differences": [asdict(one) for one in checked.differences],
        "connections": [
            {name: value for name, value in vars(way).items() if name != "stranger"} for way in checked.ways
        ],
        **({"figures": [asdict(one) for one in checked.figures]} if checked.figures else {}),
        **({"advice": checked.advice} if checked.advice else {}),
    }


def check_json(check: Check) -> dict[str, object]:
    """One conclusion for programs."""
    return {"type": "check", **asdict(check)}


def _unreached(checked: CheckReport, name: str) -> bool:
    return any(check.id == "host.reach" and name in check.hosts for check in checked.checks)


def _cell(checked: CheckReport, source: str, target: str) -> str:
    own = [way for way in checked.ways if (way.source, way.target) == (source, target)]
    if source == target:
        return "·"
    addresses = dict.fromkeys(way.address for way in own)
    whole = [one for one in addresses if all(not way.error for way in own if way.address == one)]
    best = latency(way for way in own if way.address in whole)
    return f"{best:.1f}" if best is not None else "✗"
