"""Renders a plan: counts, reasons, findings, and commands that can be copied and run by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from disttui.runner.planning.by_hand import shell_command
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
    """The whole plan as text; text from hosts is made safe for a terminal."""
    lines = [counts_line(plan), ""]
    lines += (f"  {name:<13} {clean(why)}" for name, why in recommendation.reasons.items())
    if plan.batch is not None:
        lines += ["", *_job(plan, plan.batch)]
    else:
        for host in plan.hosts:
            lines += ["", *_host(plan, host)]
    if others := list(effect_lines(plan.profile, job=False)):
        lines += ["", "what the profile has run besides the job, and the secrets that it sends", ""]
        width = max(len(key) for key, _ in others)
        lines += (f"  {key:<{width}} {text}" for key, text in others)
    notes = [*_findings(findings), *_warnings(recommendation)]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def plan_json(plan: Plan, recommendation: Recommendation, findings: Sequence[Finding]) -> dict[str, object]:
    """The same as data, for `--json`."""
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
    yield f"a job of Slurm, submitted on {plan.profile.login}: {plan.world_size} processes on {len(plan.hosts)} nodes"
    for name in _SHOWN_REASONS:
        yield f"  {name:<15} {clean(host.reasons[name])}"
    yield from ("", f"{shlex.join(submission('job.sbatch'))}, with RUN for the run's id:", "")
    yield batch_script(plan, batch)


def batch_script(plan: Plan, batch: Batch) -> str:
    """The script that is submitted, with RUN for the run's id."""
    return script(batch, "RUN", len(plan.hosts), f"{plan.profile.launch.run_dir}/RUN")


def _host(plan: Plan, host: HostPlan) -> Iterator[str]:
    last = host.first_rank + host.num_processes - 1
    ranks = f"rank {last}" if last == host.first_rank else f"ranks {host.first_rank} to {last}"
    yield f"{host.name}: node rank {host.node_rank}, {host.num_processes} of {plan.world_size} processes, {ranks}"
    for name in (*_SHOWN_REASONS, *(_SHOWN_BETWEEN_HOSTS if len(plan.hosts) > 1 else ())):
        yield f"  {name:<15} {clean(host.reasons[name])}"
    # Not indented: a line break inside an argument must be copied unchanged.
    yield from ("", shell_command(plan, host))


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        where = f"{finding.host}: " if finding.host else ""
        yield clean(f"{_MARKS[finding.level]} {finding.level}: {where}{finding.what}")
        if finding.cure:
            yield clean(f"    → {finding.cure}")


def _warnings(recommendation: Recommendation) -> Iterator[str]:
    for warning in recommendation.warnings:
        yield clean(f"{_MARKS['warning']} {f'{warning.host}: ' if warning.host else ''}{warning.text}")
