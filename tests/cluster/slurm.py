"""A Slurm on the hosts of a test cluster: the first is the login node and runs slurmctld, the others run slurmd.

Nothing of the machine's /etc/slurm and /etc/munge is used: every host has the cluster's own files bound over them.
It ends with the cluster, whose hosts take every process with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tests.cluster.cluster import Cluster
from tests.cluster.host import ClusterHost
from tests.files import new_file

_CPUS = 4
_SLURM_CONF = """\
ClusterName=test
SlurmctldHost={login.name}({login.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmctldPort=6817
SlurmdPort=6818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
UnkillableStepTimeout=5
SlurmdTimeout=30
MinJobAge=300
SchedulerParameters=batch_sched_delay=0
PropagateResourceLimits=NONE
"""
_START = """\
mount --bind {folder}/etc /etc/slurm &&
install -d -m 755 /run/munge &&
/usr/sbin/munged --key-file={folder}/munge.key --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid \
  --log-file={folder}/log/munged.{name}.log --seed-file=/run/munge/munged.seed &&
/usr/sbin/{daemon}
"""
_DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "munged")


class Slurm:
    """A started Slurm. `cluster[0]` is its login node; the partition `debug` has all other hosts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.login = cluster[0]
        self.nodes = cluster.hosts[1:]
        self._folder = cluster.folder / "slurm"
        for name in ("etc", "state", "log", *(f"spool/{node.name}" for node in self.nodes)):
            (self._folder / name).mkdir(parents=True)
        new_file(self._folder / "munge.key", os.urandom(128), 0o600)
        conf = _SLURM_CONF.format(login=self.login, folder=self._folder)
        for node in self.nodes:
            conf += f"NodeName={node.name} NodeAddr={node.address} CPUs={_CPUS} RealMemory=1000\n"
        names = ",".join(node.name for node in self.nodes)
        conf += f"PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"
        (self._folder / "etc/slurm.conf").write_text(conf)
        (self._folder / "etc/cgroup.conf").write_text("CgroupAutomount=no\n")
        self._start(self.login, "slurmctld")
        for node in self.nodes:
            self.start_node(node)
        self.wait_idle()

    def start_node(self, node: ClusterHost) -> None:
        """Start slurmd on a node that has been booted."""
        self._start(node, "slurmd")

    def _start(self, host: ClusterHost, daemon: str) -> None:
        line = _START.format(folder=self._folder, name=host.name, daemon=daemon)
        done = host.run(line)
        assert done.returncode == 0, f"{host.name}: {daemon}: {done.stdout}{done.stderr}"

    def ask(self, *words: str) -> str:
        """Run a command of Slurm on the login node; returns its output."""
        done = self.login.run(words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """The ids of the jobs that wait or run."""
        return self.ask("squeue", "-h", "-o", "%i").split()

    def processes(self) -> list[str]:
        """The command lines of all processes on the compute nodes but those of Slurm itself."""
        found = [command for node in self.nodes for _, command in node.processes()]
        return [one for one in found if not any(name in one.split(" ", 1)[0] for name in _DAEMONS)]

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"it does not happen:\n{self.login.run('sinfo; squeue').stdout}"
            time.sleep(0.1)

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until no job is left and every node is idle, without processes of a job."""
        count = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        self.wait_for(
            lambda: (
                not self.jobs()
                and self.login.run(count).stdout.strip() == str(len(self.nodes))
                and not self.processes()
            ),
            timeout,
        )
