"""From the command to the first training step under each launcher, against that launcher typed by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from disttui.runner.planning.launchers import LAUNCHERS, Place
from disttui.runner.profile.load import parse
from tests import frameworks
from tests.bench.first_step import until_all
from tests.bench.harness import Comparison, compare
from tests.bench.terminals import TRAIN, Line, disttui, lines
from tests.cluster import Cluster

NAMES = ("accelerate", "accelerate-launch", "mpirun-per-host", "mpirun", "deepspeed")


def measure(runs: int) -> Iterator[Comparison]:
    """Seconds until both ranks have printed their first step, for one launcher after the other."""
    with Cluster(2) as cluster:
        script = cluster.shared / "train.py"
        # DeepSpeed adds --local_rank.
        script.write_text(TRAIN.replace("args = parser.parse_args()", "args, _ = parser.parse_known_args()"))
        for name in NAMES:
            ours = partial(disttui, python=str(frameworks.PYTHON), launch={"launcher": name})
            mine, theirs = partial(until_all, ours, cluster, script), partial(until_all, _Hand(name), cluster, script)
            yield compare(f"first step, {name}", "s", mine, theirs, runs=runs)


class _Hand:
    """One launcher, typed into one ssh per host; mpirun into that of the first, from where it logs in to the others."""

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def __call__(
        self, cluster: Cluster, script: Path, args: Sequence[str], nproc: Sequence[int]
    ) -> Iterator[Iterator[Line]]:
        typed = 1 if self._name == "mpirun" else len(nproc)
        with lines([self._command(cluster, node, script, args, nproc) for node in range(typed)]) as read:
            yield read

    def _command(
        self, cluster: Cluster, node: int, script: Path, args: Sequence[str], nproc: Sequence[int]
    ) -> list[str]:
        hosts = ", ".join(host.name for host in cluster.hosts)
        profile = parse(f"{{disttui: 1, hosts: [{hosts}], job: {{script: {script}}}}}", "bench.yaml")
        env = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "ACCELERATE_USE_CPU": "true",
            "PYTHONUNBUFFERED": "1",
        }
        place = Place(
            profile=profile,
            counts=tuple(nproc),
            gpus=tuple(None for _ in nproc),
            node_rank=node,
            python=str(frameworks.PYTHON),
            target=profile.job.target._replace(args=tuple(args)),
            backend="gloo",
            master=cluster[0].address,
            port=29500,
            exported=tuple(env),
        )
        env |= {name: one.value for name, one in LAUNCHERS[self._name].variables(place).items()}
        env["OMPI_MCA_plm_rsh_args"] = f"-F {cluster.ssh_config}"
        words = shlex.join([*(f"{name}={value}" for name, value in env.items()), *LAUNCHERS[self._name].by_hand(place)])
        return cluster.ssh(cluster[node], f"exec env {words}")
