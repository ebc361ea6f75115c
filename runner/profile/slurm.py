"""The section `slurm`: what a profile asks of a cluster with Slurm."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from runner.profile import fields as f
from runner.profile.numbers import whole
from runner.profile.problems import bad, near, quoted
from runner.profile.sections import Model

MOST_NODES = 1024
_MOST_OPTIONS = 64
_WORD = re.compile(r"[A-Za-z0-9_.,:@%+=*/&|\[\]()!-]+")
"""Of an option's value: neither Slurm nor a shell divides it or takes part of it away."""
_TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+(:\d+)?)?")
_KEYS = {
    "nodes": "slurm.nodes", "partition": "slurm.partition", "time": "slurm.time", "account": "slurm.account",
    "qos": "slurm.qos", "gpus-per-node": "slurm.gpus_per_node", "cpus-per-task": "slurm.cpus_per_node",
    "ntasks": "num_processes", "ntasks-per-node": "num_processes", "job-name": "name", "chdir": "job.workdir",
}  # fmt: skip
"""Options that have a key of their own."""
_OURS = (
    "array", "clusters", "error", "export", "export-file", "get-user-env", "gid", "help", "hold", "input",
    "kill-on-bad-exit", "no-kill", "no-requeue", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket",
    "open-mode", "output", "parsable", "quiet", "requeue", "signal", "test-only", "uid", "usage", "version", "wait",
    "wrap",
)  # fmt: skip
"""Options by which the job would not be disttui's any more."""
_KNOWN = (
    "acctg-freq", "bb", "batch", "begin", "cluster-constraint", "comment", "constraint", "container", "contiguous",
    "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "dependency",
    "distribution", "exclude", "exclusive", "extra-node-info", "gpu-bind", "gpu-freq", "gpus", "gpus-per-socket",
    "gpus-per-task", "gres", "gres-flags", "hint", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "nodefile", "nodelist", "overcommit", "oversubscribe",
    "power", "prefer", "priority", "profile", "propagate", "reboot", "reservation", "sockets-per-node", "spread-job",
    "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "use-min-nodes", "wait-all-nodes", "wckey",
)  # fmt: skip


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise bad(quoted(value), "expected one word, as Slurm's option takes it")
    return value


def _time(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise bad(quoted(value), 'expected minutes, or like "1:30:00" or "2-12:00"')
    return value


def _option(value: str) -> str:
    name, equals, rest = value.partition("=")
    if not re.fullmatch(r"--[a-z][a-z-]*", name) or (equals and not _WORD.fullmatch(rest)):
        raise bad(quoted(value), "expected --name=value, or --name for an option without a value")
    word = name[2:]
    if key := _KEYS.get(word):
        raise bad(f"{name} has a key of its own", f"choose it by {key}")
    if word in _OURS:
        raise bad(f"{name} is disttui's to choose", "remove it")
    if word not in _KNOWN:
        meant = near(word, (*_KNOWN, *_KEYS))
        cure = f"did you mean --{meant}?" if meant else "remove it"
        raise bad(f"{name} is no option of sbatch that is known here", cure)
    return value


Word = Annotated[f.Text, AfterValidator(_word)]


class Slurm(Model):
    """What the run asks of Slurm: `hosts` is then the login node alone."""

    nodes: Annotated[int, whole(1, MOST_NODES)] = 1
    """Nodes of the job; each gets `num_processes` ranks."""
    partition: Word | None = None
    """--partition; not given: the cluster's default."""
    time: Annotated[f.Text, AfterValidator(_time)] | None = None
    """--time, the job's limit; not given: the partition's."""
    account: Word | None = None
    """--account; not given: your default."""
    qos: Word | None = None
    """--qos; not given: your default."""
    gpus_per_node: Annotated[int, whole(0, 1024)] = 0
    """GPUs on each node (--gres=gpu:N); another kind of request goes into `options`."""
    cpus_per_node: Annotated[int | None, whole(1, 4096, auto=True)] = None
    """Processors on each node (--cpus-per-task of its one task); auto: one for each rank."""
    options: Annotated[tuple[Annotated[f.Text, AfterValidator(_option)], ...], f.few(_MOST_OPTIONS)] = ()
    """Further options of sbatch, such as [--constraint=a100, --mem=64G]."""

    def sbatch(self) -> list[str]:
        """The options of sbatch that the profile gives."""
        given = {name: getattr(self, name) for name in ("partition", "time", "account", "qos")}
        gpus = [f"--gres=gpu:{self.gpus_per_node}"] if self.gpus_per_node else []
        return [*(f"--{name}={value}" for name, value in given.items() if value is not None), *gpus, *self.options]
