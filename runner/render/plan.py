"""Renders a plan (counts, reasons, findings and commands to copy), and the results of `disttui check`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from disttui.runner.formatting import amount, count, each_once, table
from disttui.runner.planning.by_hand import shell_command
from disttui.runner.planning.checks import Check, CheckReport, HostFigures, latency
from disttui.runner.planning.plan import HostPlan, Plan, counts_line
from disttui.runner.planning.preflight import Finding
from disttui.runner.planning.recommend import Recommendation
from disttui.runner.profile.effects import effect_lines, effects, secrets
from disttui.runner.protocol.slurm import Batch, script, submission
from disttui.runner.text import clean
from disttui.runner.train.layout import ORDER

_MARKS = {"error": "✗", "warning": "▲", "info": "·"}
_SHOWN_REASONS = ("num_processes", "gpus", "python", "omp_num_threads")
_OF_HOST = ("node_rank", "name", "num_processes", "first_rank", "gpus", "python", "workdir", "activate", "command")
_SHOWN_BETWEEN_HOSTS = ("interface", "addresses")


def render_plan(plan: Plan, recommendation: Recommendation, findings: Sequence[Finding]) -> str:
    """The whole plan as text, safe for a terminal."""
    lines = [counts_line(plan), ""]
    lines += (f"  {name:<13} {clean(why)}" for name, why in recommendation.reasons.items())
    if plan.batch is not None:
        lines += ["", *_job(plan, plan.batch)]
    else:
        for host in plan.hosts:
            lines += ["", *_host(plan, host)]
    if others := list(effect_lines(plan.profile, job=False)):
        lines += ["", "other commands of the profile, and the secrets that it sends", ""]
        width = max(len(key) for key, _ in others)
        lines += (f"  {key:<{width}} {text}" for key, text in others)
    notes = [*_findings(findings)]
    for hosts, text in each_once((one.host, one.text) for one in recommendation.warnings):
        notes.append(clean(f"{_MARKS['warning']} {f'{hosts}: ' if hosts else ''}{text}"))
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def plan_json(plan: Plan, recommendation: Recommendation, findings: Sequence[Finding]) -> dict[str, object]:
    """The plan as data for `--json`."""
    return {
        "hosts": [
            {**{name: getattr(host, name) for name in _OF_HOST}, "shell": shell_command(plan, host)}
            for host in plan.hosts
        ],
        "batch_script": batch_script(plan, plan.batch) if plan.batch is not None else None,
        "num_machines": len(plan.hosts),
        **{name: getattr(plan, name) for name in ("world_size", "backend", "strategy", "precision", "master")},
        "layout": None if plan.layout is None else {name: getattr(plan.layout, name) for name in ORDER},
        "reasons": dict(recommendation.reasons),
        "runs": [one._asdict() for one in effects(plan.profile)],
        "secrets": [one._asdict() for one in secrets(plan.profile)],
        "warnings": [asdict(warning) for warning in recommendation.warnings],
        "findings": [asdict(finding) for finding in findings],
    }


def _job(plan: Plan, batch: Batch) -> Iterator[str]:
    host = plan.hosts[0]
    size = f"{amount(plan.world_size, 'process')} on {amount(len(plan.hosts), 'node')}"
    yield f"a Slurm job, submitted on {plan.profile.login}: {size}"
    for name in _SHOWN_REASONS:
        yield f"  {name:<15} {clean(host.reasons[name])}"
    yield from ("", f"{shlex.join(submission('job.sbatch', batch))}, with RUN for the run's id:", "")
    yield batch_script(plan, batch)


def batch_script(plan: Plan, batch: Batch) -> str:
    """The batch script to submit, with RUN for the run's id."""
    return script(batch, "RUN", len(plan.hosts), f"{plan.profile.launch.run_dir}/RUN")


def _host(plan: Plan, host: HostPlan) -> Iterator[str]:
    last = host.first_rank + host.num_processes - 1
    ranks = f"rank {last}" if last == host.first_rank else f"ranks {host.first_rank} to {last}"
    yield f"{host.name}: node rank {host.node_rank}, {host.num_processes} of {plan.world_size} processes, {ranks}"
    names = (*_SHOWN_REASONS, *(_SHOWN_BETWEEN_HOSTS if len(plan.hosts) > 1 else ()))
    first = plan.hosts[0]
    own = [name for name in names if host is first or host.reasons[name] != first.reasons[name]]
    for name in own:
        yield f"  {name:<15} {clean(host.reasons[name])}"
    if len(own) < len(names):
        yield f"  {'otherwise' if own else 'everything':<15} as {first.name}"
    # Not indented, so that line breaks inside arguments can be copied unchanged.
    yield from ("", shell_command(plan, host))


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for hosts, (level, what, cure) in each_once((one.host, (one.level, one.what, one.cure)) for one in findings):
        yield clean(f"{_MARKS[level]} {level}: {f'{hosts}: ' if hosts else ''}{what}")
        if cure:
            yield clean(f"    → {cure}")


_SIGNS = {"ok": "✓", "info": "·", "warning": "!", "error": "✗"}


def check_lines(check: Check) -> list[str]:
    """The lines of one check: what was observed, why it matters, and what to do."""
    hosts = " and ".join(check.hosts)
    lines = [f"{_SIGNS[check.level]} {f'{hosts}: ' if hosts else ''}{check.what} [{check.id}]"]
    if check.why:
        lines.append(f"    {check.why}")
    if check.cure:
        lines.append(f"  → {check.cure}")
    return lines


def end_lines(checked: CheckReport) -> list[str]:
    """The lines after all checks: tables of differences, connections and figures, advice, and the result."""
    lines: list[str] = []
    reached = list(dict.fromkeys(way.source for way in checked.ways))
    if checked.differences:
        unreached = {name for check in checked.checks if check.id == "host.reach" for name in check.hosts}
        names = [name for name in checked.hosts if name not in unreached]
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
    lines += ["", f"{sign} {hosts} host{'s' if hosts > 1 else ''} checked: {found or 'no problems found'}"]
    return lines


def _figures(one: HostFigures) -> Iterator[tuple[str, str]]:
    """Yield (column, text) of a measured host."""
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
    """The last record of `disttui check --json`, after those of the single checks."""
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


def _cell(checked: CheckReport, source: str, target: str) -> str:
    own = [way for way in checked.ways if (way.source, way.target) == (source, target)]
    if source == target:
        return "·"
    addresses = dict.fromkeys(way.address for way in own)
    whole = [one for one in addresses if all(not way.error for way in own if way.address == one)]
    best = latency(way for way in own if way.address in whole)
    return f"{best:.1f}" if best is not None else "✗"
