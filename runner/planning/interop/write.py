"""Exports a plan to files of other launchers, which run without disttui. Secrets remain shell references."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import yaml

from disttui.runner.errors import InputError
from disttui.runner.planning.by_hand import folder, interface, outer, shell_command, value, word
from disttui.runner.planning.interop import from_accelerate as variables
from disttui.runner.planning.launchers import (
    LAUNCHERS,
    NUMBERS_OF_OPEN_MPI,
    RENDEZVOUS_TIMEOUT,
    Place,
    target_words,
    torchrun_target,
)
from disttui.runner.planning.network import LOOPBACK
from disttui.runner.planning.plan import HostPlan, Plan, host_plan, job_words
from disttui.runner.profile.fields import is_ip
from disttui.runner.profile.references import references
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.profile.sections import Target as JobTarget
from disttui.runner.text import clean, clean_lines, quote

Target = Literal["accelerate", "hostfile", "sbatch", "script"]
_HEAD = "#!/bin/bash\n"


@dataclass(frozen=True)
class Exported:
    """Exported files as name → text, and notes for the user."""

    files: dict[str, str]
    notes: tuple[str, ...]


def write(plan: Plan, target: Target) -> Exported:
    """Write the files of one target. Raises InputError if it does not support the plan."""
    makers = {"accelerate": _accelerate, "hostfile": _hostfile, "sbatch": _sbatch, "script": _script}
    if target in ("hostfile", "sbatch"):
        plan = replace(plan, hosts=tuple(_routed(plan, host) for host in plan.hosts))
    made = makers[target](plan)
    notes = [*made.notes]
    if plan.profile.job.builtin:
        notes.append(f"the job is built in: copy {BUILTIN} to {clean(plan.hosts[0].workdir)} on every host")
    if plan.profile.launch.restarts:
        notes.append("launch.restarts is not exported: these files start the run once")
    if plan.profile.job.sync:
        notes.append(f"job.sync is not exported: copy the code to {clean(plan.hosts[0].workdir)} on every host")
    if plan.profile.data:
        notes.append(
            f"data is not exported: copy {', '.join(clean(one.to) for one in plan.profile.data)} to every host"
        )
    if names := sorted({name for host in plan.hosts for name in host.references}):
        notes.append(f"secrets are not written: set {', '.join(names)} in the shell that starts it")
    return Exported(made.files, tuple(notes))


def _routed(plan: Plan, host: HostPlan) -> HostPlan:
    """Remove an interface found by the probe from a host: a file for all hosts looks it up on each."""
    if plan.profile.hosts[host.node_rank].interface:
        return host
    own = plan.profile.host_env(host.node_rank)
    env = {name: text for name, text in host.env.items() if name in own or not name.endswith("_SOCKET_IFNAME")}
    return replace(host, interface=None, env=env)


def _script(plan: Plan) -> Exported:
    launcher = plan.profile.launch.launcher
    counts = {host.name: host.num_processes for host in plan.hosts}
    if refused := LAUNCHERS[launcher].refusal(plan.profile, counts, plan.backend):
        raise InputError(*refused)
    files = {f"run-{host.node_rank}.sh": f"{_HEAD}{shell_command(plan, host)}\n" for host in plan.hosts}
    where = "; ".join(f"run-{host.node_rank}.sh on {host.name}" for host in plan.hosts[:8])
    waits = launcher in ("torchrun", "accelerate", "accelerate-launch")
    within = f" within {RENDEZVOUS_TIMEOUT} s" if waits else ""
    return Exported(files, (f"start all of them{within}: {where}",))


def _hostfile(plan: Plan) -> Exported:
    """Write a hostfile with lines `name slots=n`, and a script with the mpirun that uses it."""
    lines, notes = [], []
    for host, entry in zip(plan.hosts, plan.profile.hosts, strict=True):
        if "#" in entry.host:
            what = f"a hostfile cannot name {entry.host}: # starts a comment"
            raise InputError(what, "Give the host another alias in ~/.ssh/config.")
        lines.append(f"{'localhost' if entry.endpoint.is_local else entry.host} slots={host.num_processes}\n")
        if entry.user or entry.port:
            notes.append(f"a hostfile cannot contain user and port of {host.name}: write them into ~/.ssh/config")
    if len(plan.hosts) > 1 and any(entry.endpoint.is_local for entry in plan.profile.hosts):
        notes.append("localhost in the hostfile is the machine that runs mpirun: run it on this one")
    hostfile, first = {"hostfile": "".join(lines)}, plan.hosts[0]
    if len(plan.hosts) > 1 and ipaddress.ip_address(plan.master).is_loopback:
        given = plan.profile.launch.master or plan.profile.hosts[0].address
        why = f"{plan.master} is another machine on each host; set launch.master to an address that all reach"
        why = why if given == plan.master else "launch.master is auto; set it, or add --probe"
        return Exported(hostfile, (*notes, f"no mpirun.sh: {why}"))
    if differing := sorted({name for host in plan.hosts for name in _differing(first, host)}):
        return Exported(hostfile, (*notes, f"no mpirun.sh: the hosts differ in {', '.join(differing)}"))
    env = {**first.env, "MASTER_ADDR": plan.master, "MASTER_PORT": str(plan.profile.launch.ports[0])}
    inner = f"{_prelude(first)}{_interface(plan, first)}export {NUMBERS_OF_OPEN_MPI}\nexec {_rank_command(plan, first)}"
    words = ["mpirun", "--hostfile", "hostfile", "-np", str(plan.world_size), "--bind-to", "none"]
    words += [word for name in env for word in ("-x", name)]
    command = f"{' '.join(words)} bash -c {quote(inner)}"
    text = f'{_HEAD}cd "$(dirname "$0")" || exit\n{_exports(env)}exec {command}\n'
    return Exported({**hostfile, "mpirun.sh": text}, (*notes, *_python_note(plan)))


def _sbatch(plan: Plan) -> Exported:
    """Write a job script that starts one torchrun on each node, with the first node as master."""
    _alike(plan, "a job script is the same on all nodes")
    first, name = plan.hosts[0], plan.profile.name
    processes = _equal(plan, "a job script starts equally many processes on each node")
    env = {key: text for key, text in first.env.items() if key != "CUDA_VISIBLE_DEVICES" or not text}
    directives = [
        f"--job-name={name}", f"--nodes={len(plan.hosts)}", "--ntasks-per-node=1", "--no-requeue",
        f"--output={name}-%j.out",
    ]  # fmt: skip
    slurm, tasks = plan.profile.slurm, ""
    note = "the queue chooses the nodes, not the profile"
    note += "; add your --partition and --time" if slurm is None else ""
    if slurm is not None:
        tasks = f"--cpus-per-task={slurm.cpus_per_node or processes} "
        directives += [tasks.strip(), *slurm.sbatch()]
    else:
        threads = first.env.get("OMP_NUM_THREADS", "")  # may be a list or a reference
        tasks = f"--cpus-per-task={processes * (int(threads) if re.fullmatch('[1-9][0-9]{0,2}', threads) else 1)} "
        directives.append(tasks.strip())
    if slurm is None and (plan.backend == "nccl" or first.gpus):
        directives.append(f"--gpus-per-node={processes}")
    elif slurm is None and plan.backend == "auto":
        note += "; launch.backend is auto, so no GPUs are requested: set backend: nccl for them"
    options = ["--nnodes", str(len(plan.hosts)), "--nproc-per-node", str(processes), "--rdzv-backend", "static"]
    options += ["--max-restarts", "0"]
    master = '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
    python = [*(outer(word, first) for word in first.around), folder(first.python)]
    # Slurm may have only the name of a node.
    address = """"$(getent ahosts "$MASTER_ADDR" | awk '{print $1; exit}')\""""
    words = [*python, "-m torch.distributed.run", *options, master, *_words(torchrun_target(*_target(plan)), plan)]
    inner = f"{_interface(plan, first, address)}exec {' '.join(words)}"
    text = (
        _HEAD
        + "".join(f"#SBATCH {one}\n" for one in directives)
        + _prelude(first)
        + _exports(env)
        + 'FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        + "MASTER_ADDR=$(scontrol -o show node \"$FIRST\" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)\n"
        # Without an address each node would silently train alone.
        + 'export MASTER_ADDR="${MASTER_ADDR:?the address of the first node is not known}"\n'
        + "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
        + f"srun {tasks}--kill-on-bad-exit=1 bash -c {quote(inner)}\n"
        + "exit $?\n"
    )
    return Exported({"job.sbatch": text}, (note, *_python_note(plan)))


def _accelerate(plan: Plan) -> Exported:
    """Write a configuration and a script with the `accelerate launch` that uses it for each machine rank."""
    _equal(plan, "Accelerate needs equally many processes on each machine")
    if plan.profile.container and plan.profile.container.runtime != "apptainer":  # which sees the home folder
        what = "accelerate launch would look for its configuration inside the container, where it is not"
        raise InputError(what, "Export --to script, or remove `container`.")
    files: dict[str, str] = {}
    for host in plan.hosts:
        settings, env = _settings(plan, host)
        rank = host.node_rank
        files[f"accelerate-{rank}.yaml"] = yaml.safe_dump(settings, sort_keys=True, default_flow_style=False)
        words = ["accelerate launch"]
        if plan.profile.hosts[rank].python:
            words = [folder(host.python), "-m accelerate.commands.launch"]
        flags = {"module": "--module ", "command": "--no_python "}.get(plan.profile.job.target.kind, "")
        job = " ".join(_words(_job(plan)[1 if flags else 0 :], plan))
        command = f'{" ".join(words)} --config_file "$HERE/accelerate-{rank}.yaml" {flags}{job}'
        wrap = "".join(f"{outer(word, host)} " for word in host.around)
        here = 'HERE=$(cd "$(dirname "$0")" && pwd) || exit\n'
        before = f"{_HEAD}{here}{_prelude(host)}{_interface(plan, host)}{_exports(env)}"
        files[f"launch-{rank}.sh"] = f"{before}exec {wrap}{command}\n"
    notes = [f"launch-{host.node_rank}.sh on {host.name}, beside its YAML" for host in plan.hosts[:8]]
    if plan.backend == "gloo":
        notes.append("use_cpu stays false: with it Accelerate trains alone on each host; see ACCELERATE_USE_CPU")
    if plan.backend == "auto":
        notes.append("launch.backend is auto: written as MULTI_GPU; hosts without GPUs need backend: gloo")
    return Exported(files, tuple(notes))


def _settings(plan: Plan, host: HostPlan) -> tuple[dict[str, object], dict[str, str]]:
    """Return the configuration of one machine, and the variables that it cannot contain."""
    env = dict(host.env)
    kind = "NO" if plan.world_size == 1 and plan.backend != "gloo" else "MULTI_GPU"
    if env.get(variables.SWITCHES["fsdp_config"]) == "true":
        kind = "FSDP"
    if env.get(variables.SWITCHES["deepspeed_config"]) == "true":
        kind = "DEEPSPEED"
    settings: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": env.pop(variables.MIXED_PRECISION, "no"),
        "num_machines": len(plan.hosts),
        "num_processes": plan.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if len(plan.hosts) > 1:
        port = plan.profile.launch.ports[0]
        settings |= {"machine_rank": host.node_rank, "main_process_ip": plan.master, "main_process_port": port}
    elif host.gpus:
        settings["gpu_ids"] = env.pop("CUDA_VISIBLE_DEVICES", "")
    if env.pop(variables.DEBUG, "") == "true":
        settings["debug"] = True
    if env.pop(variables.CPU_AFFINITY, "") == "1":
        settings["enable_cpu_affinity"] = True
    for section, keys in variables.SECTIONS.items():
        found = {key: _typed(env.pop(name)) for key, name in keys.items() if name in env and not references(env[name])}
        env.pop(variables.SWITCHES.get(section, ""), None)
        if kind == "DEEPSPEED" and section == "deepspeed_config" and len(plan.hosts) > 1:
            found["deepspeed_multinode_launcher"] = "standard"  # else pdsh
        if found:
            settings[section] = found
    return settings, env


def _typed(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


def _target(plan: Plan) -> tuple[str, str, tuple[str, ...]]:
    kind, target, _ = plan.profile.job.target
    return kind, BUILTIN if kind == "builtin" else target, plan.job_args


def _job(plan: Plan) -> tuple[str, ...]:
    return target_words(*_target(plan))


def _words(words: Iterable[str], plan: Plan) -> list[str]:
    return [word(text, plan) for text in words]


def _rank_command(plan: Plan, host: HostPlan) -> str:
    """Return the command of one rank that is not started by torchrun."""
    words = list(_job(plan))
    before = [*map(quote, host.around)]
    if words[0] == "--no-python":
        return " ".join([*before, *_words(words[1:], plan)])
    return " ".join([*before, folder(host.python), *_words(words, plan)])


def _prelude(host: HostPlan) -> str:
    then = f"{clean_lines(host.activate)} || exit\n" if host.activate else ""
    return f"cd {folder(host.workdir)} || exit\n{then}"


def _interface(plan: Plan, host: HostPlan, master: str = "") -> str:
    found = interface(plan, host, master or quote(plan.master)).items()
    return "".join(f"export {name}={word}\n" for name, word in found if name not in host.env)


def _exports(env: dict[str, str]) -> str:
    return "".join(f"export {name}={value(name, text)}\n" for name, text in env.items())


def _python_note(plan: Plan) -> tuple[str, ...]:
    first = plan.hosts[0]
    guessed = first.python == "python3" and not (first.activate or plan.profile.enclosed)
    return ("the interpreter is the hosts' python3; set python in the profile for another",) if guessed else ()


def _equal(plan: Plan, why: str) -> int:
    counts = {host.num_processes for host in plan.hosts}
    if len(counts) > 1:
        shown = ", ".join(f"{host.name} {host.num_processes}" for host in plan.hosts[:6])
        cure = "Make num_processes equal, or export --to script."
        raise InputError(f"the hosts have unequal num_processes ({shown}), and {why}", cure)
    return counts.pop()


def _alike(plan: Plan, why: str) -> None:
    """Raise InputError if a host's settings differ, since all hosts share one command."""
    first = plan.hosts[0]
    for host in plan.hosts[1:]:
        differing = [*_differing(first, host)]
        if differing:
            what = f"{host.name} differs from {first.name} in {', '.join(differing)}, and {why}"
            raise InputError(what, "Make them equal, or export --to script.")


def _differing(one: HostPlan, other: HostPlan) -> Iterable[str]:
    for name in ("python", "workdir", "activate", "interface"):
        if getattr(one, name) != getattr(other, name):
            yield name
    if one.env != other.env:
        yield "env"


Need = Literal["python", "master"]
BUILTIN = "bytegpt.zip"
"""File name of the built-in job next to the exported files."""


def explicit_plan(profile: Profile, *, needs: Sequence[Need] = ()) -> Plan:
    """Make a plan from the profile alone, without facts.

    Args:
        needs: Values needed besides the counts; others default to python3 and loopback.

    Raises:
        InputError: A needed value depends on the hosts.
    """
    lacking = [f"hosts.{rank}.num_processes" for rank, host in enumerate(profile.hosts) if host.num_processes is None]
    master = master_of(profile)
    if "python" in needs:
        lacking += [f"hosts.{rank}.python" for rank, host in enumerate(profile.hosts) if not _python(profile, host)]
    if "master" in needs and not master:
        lacking.append("launch.master")
    if lacking:
        shown = ", ".join(lacking[:6]) + (f" and {len(lacking) - 6} more" if len(lacking) > 6 else "")
        cure = "Set them in the profile or by --set, or add --probe to ask the hosts."
        raise InputError(f"{profile.name}: these values depend on the hosts: {shown}", cure)
    kind, value, _ = profile.job.target
    backend, strategy, precision = profile.launch.backend, profile.parallel.strategy, profile.precision
    words = job_words(profile, strategy, None, precision, backend)
    target = JobTarget(kind, BUILTIN if kind == "builtin" else value, words)
    hosts = tuple(_host(profile, rank, target, master or LOOPBACK) for rank in range(len(profile.hosts)))
    return Plan(
        profile=profile,
        hosts=hosts,
        backend=backend,
        strategy=strategy,
        layout=None,
        precision=precision,
        world_size=sum(host.num_processes for host in hosts),
        master=master or LOOPBACK,
        job_args=words,
    )


def master_of(profile: Profile) -> str | None:
    """Return the address of the first host that the profile sets, or None."""
    first = profile.hosts[0]
    if len(profile.hosts) == 1:
        return LOOPBACK
    if profile.launch.master and is_ip(profile.launch.master):
        return profile.launch.master
    return first.address or (first.host if is_ip(first.host) else None)


def _python(profile: Profile, host: Host) -> str:
    return host.python or ("python3" if host.activate or profile.enclosed else "")


def _host(profile: Profile, rank: int, target: JobTarget, master: str) -> HostPlan:
    host = profile.hosts[rank]
    place = Place(
        profile=profile,
        counts=tuple(one.num_processes or 1 for one in profile.hosts),
        gpus=tuple(one.gpus for one in profile.hosts),
        node_rank=rank,
        python=_python(profile, host) or "python3",
        target=target,
        backend=profile.launch.backend,
        master=master,
        port=profile.launch.ports[0],
    )
    variables = LAUNCHERS[profile.launch.launcher].variables(place)
    added = {**_devices(profile, host), **{name: one.value for name, one in variables.items()}}
    place = replace(place, exported=tuple(dict.fromkeys((*added, *profile.host_env(rank)))))
    return host_plan(place, added, workdir=profile.workdir(rank), gpus=host.gpus, interface=host.interface, reasons={})


def _devices(profile: Profile, host: Host) -> dict[str, str]:
    """Return the same device variables as the plan of a run."""
    if host.gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if profile.launch.backend != "gloo" and host.gpus is None:
        return {}
    alone = not any(one.gpus for one in profile.hosts)
    return {"CUDA_VISIBLE_DEVICES": "", **({"ACCELERATE_USE_CPU": "true"} if alone else {})}
