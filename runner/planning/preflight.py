"""Finds problems before a run is started, each with its host and cure.

They follow from profile, facts and plan; only the job's code and a DeepSpeed configuration are also read on this
machine.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from disttui.runner import private
from disttui.runner.errors import near
from disttui.runner.formatting import amount, gibibytes
from disttui.runner.hosts.facts import HostFacts, Interpreter
from disttui.runner.paths import expanded, here, to_send
from disttui.runner.planning import bytegpt, network
from disttui.runner.planning.interop.from_deepspeed import values
from disttui.runner.planning.interpreter import find_python, has_environment, in_sandbox, release
from disttui.runner.planning.launchers import LAUNCHERS, MPI_INSTALL, mpi_refusals
from disttui.runner.planning.plan import HostPlan, Plan
from disttui.runner.planning.processes import free_gpus, gpu_state, hosts_by_value, offered_gpus, who_uses
from disttui.runner.profile import leaks
from disttui.runner.profile.effects import names
from disttui.runner.profile.nodes import MappingNode, ScalarNode, compose
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem, printable
from disttui.runner.profile.resolve import SecretValues
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.leases import what_of, who_has
from disttui.runner.protocol.slurm import PROGRAMS
from disttui.runner.text import clean
from disttui.runner.train.options import find_flaw, parse
from disttui.runner.train.problem import Problem

_OPTION = "--deepspeed_config"
"""The option of DeepSpeed's own argument parser. Trainer, whose option is --deepspeed, replaces `auto` itself."""
_LARGEST = 1024 * 1024


def _config_of(profile: Profile) -> tuple[str | None, Path] | None:
    """Return host (None: a copy on this machine) and path of the DeepSpeed configuration; None if not readable here."""
    words = profile.job.target.args
    given = (_given(word, after) for word, after in zip(words, (*words[1:], ""), strict=False))
    name = next(filter(None, given), "")
    if profile.launch.launcher != "deepspeed" or not name:
        return None
    if (folder := profile.sync_source) is not None:
        return None, folder / name
    for rank, host in enumerate(profile.hosts):
        if host.endpoint.is_local:
            return host.name, expanded(profile.workdir(rank)) / expanded(name)
    return None if name.startswith(("/", "~")) else (None, Path(name))


def _given(word: str, after: str) -> str:
    option, equals, value = word.partition("=")
    if option.replace("-", "_") != _OPTION.replace("-", "_"):
        return ""
    return value if equals else after


def _autos(path: Path) -> list[str]:
    """Return the keys whose value is `auto`, safe to print; [] if the file cannot be read or parsed."""
    try:
        text = private.read(path, _LARGEST)[0].decode("utf-8-sig")
        root = compose(text.expandtabs(2), str(path), [])
    except (OSError, ValueError, ProfileErrors, private.NoRegularFileError):
        return []
    found = values(root, "") if isinstance(root, MappingNode) else ()
    open_ = [(line, key) for line, key, node in found if isinstance(node, ScalarNode) and node.text == "auto"]
    return [f"{clean(key)} (line {line})" for line, key in open_]


OLDEST_TORCH = (2, 6)
"""The first release with FSDP2's public names, which the built-in job imports."""
LITTLE_DISK = 2 * 2**30
"""Free bytes below which logs and checkpoints may soon fill the disk."""
_MOST_PACKAGES = 5
"""Differing packages to list individually."""
_LARGEST_SCRIPT = 16 << 20
CLOCKS_APART = 5.0
"""Largest tolerated difference of two hosts' clocks, seconds: a probe's answer itself may take seconds."""

_ACTIVATE = "Correct `activate`; to ignore its status, end it with `; true`"

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """A problem found before the start. An error prevents the start; `host` is None if it concerns several hosts."""

    level: Level
    host: str | None
    what: str
    cure: str
    keys: tuple[str, ...] = ()
    """Keys that request what the host does not have, so that waiting does not help."""


def check(profile: Profile, facts: Sequence[HostFacts], plan: Plan, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return all findings, errors first.

    Args:
        facts: One per host of the profile, in its order.
        environ: The environment that `${env:NAME}` references are resolved in.
    """
    found: list[Finding] = [*_variables(profile, environ)]
    if plan.batch is not None:
        found += _on_login_node(profile, facts[0], plan)
        return _errors_first(found)
    for host, one in zip(plan.hosts, facts, strict=True):
        _, python, _ = find_python(profile, profile.hosts[host.node_rank], one)
        if not profile.enclosed:
            found += _python(profile, host, one, python)
        found += _gpus(profile, host, one, plan.backend)
        found += _mpi(profile, host, python)
        found += _leases(profile, host, one)
        found += _places(profile, host, one, hidden=not any(each.workdir.script_exists for each in facts))
        found += _needs(profile, host, one)
        found += _nccl(profile, plan, host, one)
        found += _host(host, one, known="" if python else _uninspected(host, one))
    found += _arguments(profile)
    found += _division(profile, plan)
    found += _launch(profile, plan)
    versions = {host.name: one.needs.version for host, one in zip(plan.hosts, facts, strict=True) if one.needs.version}
    found += [Finding("error", None, *refused) for refused in mpi_refusals(profile, versions)]
    found += _deepspeed(profile)
    found += _network(profile, plan, facts)
    found += _code(profile, plan, facts)
    found += _between(profile, plan, facts)
    found += _packages(plan, facts)
    return _errors_first(found)


def different_packages(facts: Sequence[HostFacts]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and version on each host of packages that differ between environments; "" without it."""
    if all(one.packages for one in facts):
        for name in sorted({name for one in facts for name in one.packages}):
            versions = tuple(one.packages.get(name, "") for one in facts)
            if len(set(versions)) > 1:
                yield name, versions


def _packages(plan: Plan, facts: Sequence[HostFacts]) -> Iterator[Finding]:
    different = list(different_packages(facts))
    for name, versions in different[:_MOST_PACKAGES]:
        there = ", ".join(f"{one or 'none'} on {host.name}" for one, host in zip(versions, plan.hosts, strict=True))
        more = f" (`disttui check` lists all {len(different)})" if len(different) > _MOST_PACKAGES else ""
        yield Finding("warning", None, f"{name} differs: {there}", f"Pin its version in the file{more}")


def _errors_first(found: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.level)))


def _on_login_node(profile: Profile, facts: HostFacts, plan: Plan) -> Iterator[Finding]:
    """Yield what can be checked for a Slurm job on the login node, whose files the nodes share."""
    name = profile.login
    host = replace(plan.hosts[0], name=name)
    _, python, _ = find_python(profile, profile.hosts[0], facts)
    if missing := [program for program in facts.needs.programs if program in PROGRAMS]:
        what = f"{', '.join(missing)} not found: not a Slurm login node"
        yield Finding("error", name, what, "Name the host where you submit jobs, or put Slurm's programs into its PATH")
    if not profile.enclosed:
        yield from _python(profile, host, facts, python)
    if plan.backend == "nccl":
        yield from _no_cuda(name, python)
    yield from _places(profile, host, facts, hidden=not facts.workdir.script_exists)
    yield from _needs(profile, host, facts)
    if facts.activate_problem:
        yield Finding("error", name, facts.activate_problem, _ACTIVATE)
    yield from _arguments(profile)
    yield from _division(profile, plan)
    yield from _launch(profile, plan)


def _variables(profile: Profile, environ: Mapping[str, str]) -> Iterator[Finding]:
    problems: dict[str, None] = {}
    for rank in range(len(profile.hosts)):
        try:
            profile.split_env(rank, SecretValues(environ).check)
        except ProfileErrors as error:
            problems.update(dict.fromkeys(map(str, error.problems)))
    for problem in problems:
        yield Finding("error", None, problem, "Set it in the environment of disttui, or remove the reference")
    for leak in leaks.mask(profile.as_written()):
        cure = f"{leak.expected[:1].upper()}{leak.expected[1:]}"
        yield Finding("warning", None, f"{leak.what}: stored with the run", cure)


def _python(profile: Profile, host: HostPlan, facts: HostFacts, python: Interpreter | None) -> Iterator[Finding]:
    name = host.name
    if not has_environment(profile, profile.hosts[host.node_rank]):
        assert profile.job.environment
        what = f"the environment of {profile.job.environment.source} was not found"
        yield Finding("warning", name, what, "The start builds it if needed, and checks its torch")
    elif python is None and profile.hosts[host.node_rank].python:
        why = _uninspected(host, facts)
        what = f"{host.python} {'does not exist' if '/' in host.python else 'is not in PATH'}"
        typed = host.python.replace("~", facts.home, 1) if host.python.startswith("~/") else host.python
        beside = [one.path for one in facts.interpreters if Path(one.path).parent == Path(typed).parent]
        meant = near(typed, beside)
        cure = f"Did you mean {meant}? " if meant else ""
        cure += "Correct `python` in the profile, or leave it auto"
        yield Finding("error", name, what if not why or "No such file" in why else why, cure)
    elif python is None and not facts.interpreters:
        yield Finding("error", name, "no Python found", "Install one with torch, or name it with `python`")
    elif python is None or not python.torch:
        tried = ", ".join(one.path for one in facts.interpreters if one.source != "elsewhere")
        looked = tried if python is None else host.python
        other = next((f"Set `python: {one.path}`, which has torch" for one in facts.interpreters if one.torch), "")
        other = other or "Set `python` to one that has it (--set python=PATH)"
        cure = f"{other}; or install it: {_pip(host.python)} install torch"
        if environment := profile.job.environment:
            cure = f"Add torch to {environment.source}, or set job.environment.inherit: true"
        yield Finding("error", name, f"no torch in {looked}", cure)
    elif release(python.torch) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        builtin = profile.job.target.kind == "builtin"
        what = f"torch {python.torch} of {python.path} is older than {oldest}"
        what += ", which the built-in job needs" if builtin else ": disttui was not tried with it"
        yield Finding("error" if builtin else "warning", name, what, f"Install torch {oldest} or later")


def _uninspected(host: HostPlan, facts: HostFacts) -> str:
    """Return why the host could not inspect the profile's interpreter, or "" if it reported no problem."""
    marker, end = " cannot be inspected: ", host.python.removeprefix("~")
    return next((one for one in facts.problems if marker in one and one.partition(marker)[0].endswith(end)), "")


def _gpus(profile: Profile, host: HostPlan, facts: HostFacts, backend: str) -> Iterator[Finding]:
    by_index = {gpu.index: gpu for gpu in facts.gpus}
    entry = profile.hosts[host.node_rank]
    listed = entry.gpus or ()
    _, python, _ = find_python(profile, entry, facts)
    if not facts.gpus and backend == "nccl" and (listed or entry.num_processes) and python and python.rocm:
        what = f"torch {python.torch} is built for ROCm, but no GPU was found"
        yield Finding("warning", host.name, what, "The profile's `gpus` and `num_processes` are used")
        return
    for index in listed:
        if index not in by_index:
            there = ", ".join(map(str, by_index)) or "none"
            cure = f"Correct `gpus`; available: {there}"
            yield Finding("error", host.name, f"GPU {index} does not exist", cure, ("gpus",))
        elif by_index[index].busy and by_index[index].lease is None:
            what = f"GPU {index} is held by {who_uses(by_index[index], facts.time)}"
            yield Finding("warning", host.name, what, "Choose another with `gpus`, or ask its user")
    if backend != "nccl":
        return
    if not facts.gpus:
        what, cure = "backend nccl, but no GPU found", "Set launch.backend to gloo or auto"
        yield Finding("error", host.name, what, cure, ("backend",))
    elif no_cuda := list(_no_cuda(host.name, python)):
        yield from no_cuda
    elif host.num_processes > len(host.gpus or ()):
        what = f"num_processes is {host.num_processes}, but the run has {amount(len(host.gpus or ()), 'GPU')} here"
        cure = "Lower num_processes, or extend `gpus`: nccl needs one GPU per process"
        most = len(listed or facts.gpus)  # others may use some of them now
        asking = ("num_processes", "gpus", "backend") if host.num_processes > most else ()
        yield Finding("error", host.name, what, cure, asking)


def _no_cuda(name: str, python: Interpreter | None) -> Iterator[Finding]:
    if python and python.torch and not python.on_gpus:
        what = f"backend nccl, but torch {python.torch} of {python.path} has no CUDA"
        yield Finding("error", name, what, "Install a torch with CUDA, or set launch.backend to gloo")


def _mpi(profile: Profile, host: HostPlan, python: Interpreter | None) -> Iterator[Finding]:
    if profile.launch.backend != "mpi":
        return
    if profile.job.target.kind == "builtin":
        what, cure = "the built-in job does not support backend mpi", "Set launch.backend to auto"
        yield Finding("error", host.name, what, cure)
    elif python and python.torch and python.mpi is False and not profile.enclosed:
        what = f"backend mpi, but torch {python.torch} of {python.path} was built without MPI, like all wheels"
        cure = "Build torch with USE_MPI=1, or set launch.backend to gloo (mpi4py still works)"
        yield Finding("error", host.name, what, cure)


def _leases(profile: Profile, host: HostPlan, facts: HostFacts) -> Iterator[Finding]:
    """Yield leases of others on what the plan uses, or on all GPUs if it could use any; and exceeded quotas."""
    leases = [gpu.lease for gpu in facts.gpus if gpu.lease is not None]
    whole = next((lease for lease in facts.reserved if not host.gpus), None)
    any_gpu = profile.launch.backend == "auto" and host.gpus is None and not profile.hosts[host.node_rank].gpus
    if whole is not None:
        yield Finding(
            "error", host.name, f"the host is held by {who_has(whole, facts.time)}", _ask(whole["user"], facts)
        )
    elif any_gpu and leases and not free_gpus(facts):
        users = ", ".join(dict.fromkeys(lease["user"] for lease in leases))
        held = "; ".join(dict.fromkeys(f"{what_of(one)}: {who_has(one, facts.time)}" for one in leases))
        yield Finding("error", host.name, f"none of its GPUs is free: {held}", _ask(users, facts))
    elif any_gpu and facts.gpus and not free_gpus(facts):
        what = f"{gpu_state(facts)}; the run computes on the CPU"
        yield Finding("warning", host.name, what, "Wait until some are free, or choose with `gpus`")
    given = profile.hosts[host.node_rank]
    quota = given.quota
    if quota is not None and len(host.gpus or ()) > quota:
        what = f"this run uses {len(host.gpus or ())} GPUs here, but the host's `quota` is {quota} per user"
        cure = "Use fewer with `gpus` or num_processes"
        yield Finding("error", host.name, what, cure, ("num_processes", "gpus", "quota"))
    elif _is_over(quota, host, facts) or (any_gpu and free_gpus(facts) and not offered_gpus(given, facts, (0, 1))):
        own = ", ".join(map(str, facts.own_gpus))
        what = f"this run would exceed the `quota` of {amount(quota or 0, 'GPU')} per user: you already hold {own}"
        cure = "Wait (`disttui run --when-free`), free some (`disttui stop`, `disttui lease release`), or use fewer"
        yield Finding("error", host.name, what, cure)
    elif quota is not None and not host.gpus and facts.own_cpu_runs >= quota:
        runs = amount(quota, "CPU run")
        what = f"this run would exceed the `quota` of {runs} per user: you have {facts.own_cpu_runs}"
        cure = "Wait (`disttui run --when-free`), or stop one (`disttui stop`)"
        yield Finding("error", host.name, what, cure)
    for gpu in facts.gpus:
        if gpu.lease is not None and gpu.index in (host.gpus or ()):
            what = f"GPU {gpu.index} is held by {who_has(gpu.lease, facts.time)}"
            yield Finding("error", host.name, what, _ask(gpu.lease["user"], facts))


def _is_over(quota: int | None, host: HostPlan, facts: HostFacts) -> bool:
    return quota is not None and bool(host.gpus) and len({*facts.own_gpus, *(host.gpus or ())}) > quota


def _ask(users: str, facts: HostFacts) -> str:
    free = ", ".join(str(gpu.index) for gpu in free_gpus(facts))
    others = f"choose others with `gpus` (free: {free})" if free else "choose another host"
    wait = "wait (`disttui run --when-free`), or start anyway (`disttui run --ignore-leases`)"
    return f"Ask {users}, {others}, {wait}"


def _places(profile: Profile, host: HostPlan, facts: HostFacts, *, hidden: bool) -> Iterator[Finding]:
    """Check the working folder, script and disk; `hidden`: no host has the script outside of its container."""
    work, disk = facts.workdir, facts.disk
    if not work.exists:
        instead = "" if profile.job.sync else ", or correct `job.workdir` in the profile"  # with sync it is the home
        cure = _in_empty_home(profile, host, facts) or _folder_is_here(profile, host) or f"Create it{instead}"
        yield Finding("error", host.name, f"the working folder {work.path} does not exist", cure)
    elif profile.job.target.kind == "script" and work.script_exists is False:
        where = work.script or f"{work.path}/{profile.job.target.value}"
        cure = _in_empty_home(profile, host, facts) or _script_is_here(profile, host)
        cure = cure or "Copy it there, or correct `job.script` or `job.workdir`"
        # It may exist inside the container's image.
        level: Level = "warning" if profile.enclosed and (hidden or profile.launch.allow_differences) else "error"
        yield Finding(level, host.name, f"the script {where} does not exist", cure)
    if not disk.writable:
        about = f"run_dir {disk.path}: "
        why = next((one.removeprefix(about) for one in facts.problems if one.startswith(about)), "")
        why = why and f": {why.rpartition('cannot be written: ')[2]}"
        cure = "Choose another folder with `launch.run_dir`"
        yield Finding("error", host.name, f"the run folder {disk.path} cannot be written{why}", cure)
    elif disk.free < LITTLE_DISK:
        level = "error" if disk.free < LITTLE_DISK / 100 else "warning"
        what = f"the disk of {disk.path} has {gibibytes(disk.free)} free of {gibibytes(disk.total)}"
        yield Finding(level, host.name, what, "Free space, or choose another folder with `launch.run_dir`")


def _in_empty_home(profile: Profile, host: HostPlan, facts: HostFacts) -> str:
    """Return the cure for what is missing in a sandbox host's temporary home folder, or "" if it is elsewhere."""
    below = Path(facts.workdir.path).is_relative_to(facts.home)
    if not (below and in_sandbox(profile, profile.hosts[host.node_rank])):
        return ""
    return f"Sandbox homes are empty: set `job.workdir` to a local folder, such as {here()}"


def _script_is_here(profile: Profile, host: HostPlan) -> str:
    """Return the cure for a script that a host lacks but this machine has, or ""."""
    name = profile.job.target.value
    place = _place_here(profile, host.node_rank, name) if profile.job.target.kind == "script" else None
    return _is_here(profile, host, _sending(profile, place, name), place) if place else ""


def _folder_is_here(profile: Profile, host: HostPlan) -> str:
    """Return the cure for a working folder that a host lacks but this machine has, or ""."""
    folder = expanded(profile.workdir(host.node_rank))
    sent = os.path.isdir(folder) and not Path.home().is_relative_to(folder)  # noqa: PTH112 - may not be entered
    keys = f"`job.sync: {folder}`{_replacing(profile)}"
    return _script_is_here(profile, host) or (_is_here(profile, host, keys, folder) if sent else "")


def _place_here(profile: Profile, node: int, name: str) -> Path | None:
    """The folder of this machine from which a path of the job leads to a file, if any.

    Runs are started from it, or the profile is in it, or it has the same path as on the host.
    """
    places = (here(), profile.local_path("", "job"), expanded(profile.workdir(node)))
    return next((place for place in places if os.path.isfile(place / expanded(name))), None)  # noqa: PTH113


def _sending(profile: Profile, place: Path, name: str) -> str:
    """Return the keys that send a local script, whose path `name` begins at `place`."""
    sent, inside = to_send(place / expanded(name), place)
    return f"`job.sync: {sent}`" + (f" and `job.script: {inside}`" if inside != name else "") + _replacing(profile)


def _replacing(profile: Profile) -> str:
    return " in place of `job.workdir`" if "workdir" in profile.job.model_fields_set else ""


def _is_here(profile: Profile, host: HostPlan, keys: str, place: Path) -> str:
    """Return the cure for what a host lacks but this machine has in a folder; setting `keys` sends it to the host."""
    if profile.hosts[host.node_rank].endpoint.is_local:
        return f"It is here: set `job.workdir: {place}` in the profile"
    return f"It is on this machine: set {keys} to send it, or correct `job.workdir`"


def _module_is_here(name: str) -> bool:
    """Whether a module or a package that can be run exists below the current folder, and that can be sent."""
    place = Path(*name.split("."))
    runs = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
    return runs and not Path.home().is_relative_to(here())


def _needs(profile: Profile, host: HostPlan, facts: HostFacts) -> Iterator[Finding]:
    after = " after `activate`" if host.activate else ""
    launcher = profile.launch.launcher
    for program in facts.needs.programs:
        if profile.slurm is not None and program in PROGRAMS:
            continue
        if program in ("mpirun", "orted") and launcher.startswith("mpirun"):
            what = f"launch.launcher is {launcher}, but {program} is not in PATH{after}"
            yield Finding("error", host.name, what, MPI_INSTALL, ("launcher",))
            continue
        key = "container.runtime" if profile.container else "job.wrap" if profile.job.wrap else "job.command"
        cure = f"Install it, or correct `{key}`" + ("" if after else ", or add it to PATH in `activate`")
        problem = "does not exist" if "/" in program else f"is not in PATH{after}"
        yield Finding("error", host.name, f"the program {program} of `{key}` {problem}", cure)
    if package := facts.needs.package:
        cure = f"Install it: {host.python} -m pip install {package}; or choose another `launch.launcher`"
        what = f"launch.launcher is {launcher}, but {host.python}{after} has no {package}"
        yield Finding("error", host.name, what, cure, ("launcher",))
    if missing := facts.needs.module:
        # A package may create submodules while it is imported, but the probe does not import it.
        level: Level = "warning" if "." in missing else "error"
        what = f"{host.python}{after} has no module {missing}"
        cure = "Install it, or correct `job.module` or `job.workdir`"
        if profile.job.target.kind == "module" and _module_is_here(profile.job.target.value):
            cure = _is_here(profile, host, f"`job.sync: {here()}`{_replacing(profile)}", here())
        yield Finding(level, host.name, what, cure)


def _pip(python: str) -> str:
    """Return a pip command for an interpreter: a new environment's if the system's refuses or `uv tool` has no pip."""
    if python.startswith(("/usr/", "/bin/")) or "/" not in python or "/uv/tools/" in python:
        return "python3 -m venv ~/.venv && ~/.venv/bin/pip"  # is found automatically
    return f"{python} -m pip"


def judged(problem: str) -> tuple[Level, str]:
    """Return the level of a problem that the probe reports, and its cure or ""."""
    if re.match("run_dir .* will be refused: ", problem):
        return "error", "Choose a folder that only you can write to with `launch.run_dir`"
    if problem.startswith("the host's own name"):
        return "warning", "disttui names the interface for gloo and NCCL; for other programs add the name to /etc/hosts"
    return "warning", ""


def _host(host: HostPlan, facts: HostFacts, known: str) -> Iterator[Finding]:
    """Report a host's problems, except `known`, which is reported elsewhere."""
    for problem in facts.problems:
        if problem == known:
            continue
        level, cure = judged(problem)
        if problem == facts.activate_problem:
            level, cure = "error", _ACTIVATE
        yield Finding(level, host.name, problem, cure)
    if facts.kill_user_processes and not facts.linger:
        what = "systemd ends all your processes, and this run, when you log out (KillUserProcesses)"
        yield Finding("warning", host.name, what, f"Run once there: loginctl enable-linger {facts.user}")
    if facts.resolves_to_loopback:
        what = f"{facts.hostname} resolves to {', '.join(facts.resolves)}; disttui names the interface instead"
        yield Finding("info", host.name, what, "")


def _arguments(profile: Profile) -> Iterator[Finding]:
    if profile.job.target.kind == "builtin" and (problem := bytegpt.problem(profile.job.target.args)):
        yield Finding("error", None, f"bytegpt: {problem}", "Correct `job.args`")


def _division(profile: Profile, plan: Plan) -> Iterator[Finding]:
    """Yield what the built-in job would reject once it knows the number of ranks."""
    if profile.job.target.kind != "builtin" or bytegpt.problem(plan.job_args):
        return
    try:
        flaw = find_flaw(parse(plan.job_args), [host.num_processes for host in plan.hosts])
    except Problem as problem:
        yield Finding("error", None, f"bytegpt: {problem}", "Correct `job.args`")
        return
    if flaw:
        place = profile.place_of_size(flaw.key)
        what = f"{flaw.what}, {flaw.cure}"
        if place:
            yield Finding("error", None, str(ProfileProblem.at(place, what)), f"Correct `parallel.{flaw.key}`")
        elif flaw.key in type(profile.parallel).model_fields:
            yield Finding("error", None, f"bytegpt: {what}", f"Set `parallel.{flaw.key}`, or correct `job.args`")
        else:
            yield Finding("error", None, f"bytegpt: {flaw.key} {what}", "Correct `job.args`")


def _launch(profile: Profile, plan: Plan) -> Iterator[Finding]:
    counts = {host.name: host.num_processes for host in plan.hosts}
    if refused := LAUNCHERS[profile.launch.launcher].refusal(profile, counts, plan.backend):
        yield Finding("error", None, *refused)
    cure = "Set `launch.restarts` to the number of further attempts"
    if profile.launch.rejoin_timeout and not profile.launch.restarts:
        what = "launch.rejoin_timeout has no effect without restarts"
        yield Finding("warning", None, what, cure)
    if profile.launch.resume_args and not profile.launch.restarts:
        what = "launch.resume_args has no effect without restarts or `rerun --resume`"
        yield Finding("warning", None, what, cure)


def _deepspeed(profile: Profile) -> Iterator[Finding]:
    if (config := _config_of(profile)) is None:
        return
    host, path = config
    if found := _autos(path):
        keys = ", ".join(found[:3])
        keys += f" and {len(found) - 3} more" if len(found) > 3 else ""
        where = printable(str(path) if host else f"{path.absolute()}, the copy on this machine")
        what = f"auto in {where}: {keys}; DeepSpeed itself rejects it"
        cure = "Write the values there; only Trainer (--deepspeed) and Accelerate fill them in"
        yield Finding("warning", host, what, cure)


def _network(profile: Profile, plan: Plan, facts: Sequence[HostFacts]) -> Iterator[Finding]:
    first, last = profile.launch.ports
    if facts[0].free_port is None:
        held = facts[0].ports_held
        what = f"no port from {first} to {last} is free" + (f": {held}" if held else "")
        yield Finding("error", plan.hosts[0].name, what, "Set other ports with `launch.ports`")
    if all(found.boot_id and found.boot_id == facts[0].boot_id for found in facts):
        return  # one machine: loopback reaches all of it
    for host, found, own in zip(plan.hosts, facts, profile.hosts, strict=True):
        if not own.address and not network.candidates(found):
            what = "no network interface that other hosts could reach"
            yield Finding("error", host.name, what, "Bring one up, or set `address`")
        if own.interface and own.interface not in {nic.name for nic in found.nics}:
            there = ", ".join(nic.name for nic in found.nics if nic.up and not nic.loopback)
            what = f"the interface {own.interface} does not exist"
            yield Finding("error", host.name, what, f"Correct `interface`; available: {there}", ("interface",))


def _nccl(profile: Profile, plan: Plan, host: HostPlan, facts: HostFacts) -> Iterator[Finding]:
    """Warn if the job itself requests nccl, but another backend was chosen and this host has no usable GPU."""
    if plan.backend == "nccl":
        return
    target = profile.job.target
    if any(word == "nccl" or word.endswith("=nccl") for word in target.args):
        asked = "job.args set backend nccl" if target.kind != "command" else "job.command sets backend nccl"
    elif facts.code and facts.code.nccl_line:
        asked = f"line {facts.code.nccl_line} of {target.value} creates a process group with nccl"
    else:
        return
    _, python, _ = find_python(profile, profile.hosts[host.node_rank], facts)
    if not facts.gpus:
        why = "no GPU found"
    elif python and python.torch and not python.on_gpus:
        why = f"torch {python.torch} of {python.path} has no CUDA"
    elif not host.gpus:
        why = "this run computes on the CPU"
    else:
        return
    cure = "Let the job use gloo without a GPU: check torch.cuda.is_available()"
    yield Finding("warning", host.name, f"{asked}, but {why}", cure)


def _code(profile: Profile, plan: Plan, facts: Sequence[HostFacts]) -> Iterator[Finding]:
    """Yield differences of the job's code between hosts, and code that starts its own launcher."""
    level: Level = "warning" if profile.launch.allow_differences else "error"
    cure = "Copy the same code to all hosts, or set launch.allow_differences (--allow-differences)"
    known = [(host.name, one.code) for host, one in zip(plan.hosts, facts, strict=True) if one.code]
    target = profile.job.target
    what = next((code.file for _, code in known if code.file in target.args), None) or target.value
    commits = {
        name: f"{code.git.head[:7]}{' with changes' if code.git.dirty else ''}" for name, code in known if code.git
    }
    lacking = [host.name for host, one in zip(plan.hosts, facts, strict=True) if not one.code]
    if known and lacking and target.kind != "script":
        yield Finding(level, None, f"{what} is not on {names(lacking)}", cure)
    own = _here(profile, what)
    if own and target.kind == "script" and (place := _place_here(profile, 0, what)):
        cure = f"Set {_sending(profile, place, what)} to send it at every start. Or copy{cure.removeprefix('Copy')}"
    versions = (
        (f"{what} differs", [*own, *((name, code.script) for name, code in known)]),
        (f"the Python files next to {what} differ", [(name, code.folder) for name, code in known]),
    )
    for words, found in versions:
        if sides := _sides(found, commits):
            yield Finding(level, None, f"{words}: {sides}", cure)
            break
    else:
        if sides := _sides([(name, code.git.head) for name, code in known if code.git], commits):
            what = f"the checked-out commits differ: {sides}"
            yield Finding("warning", None, what, "Check out the same commit on all hosts")
    line = next((code.launcher_line for _, code in known if code.launcher_line), None)
    if line and plan.world_size > 1:
        starts = f"line {line} of {what} starts its own launcher in each of {plan.world_size} processes"
        instead = "Set `job.script` to the Python script: disttui starts the ranks; or give that launcher all hosts"
        yield Finding("warning", None, f"{starts}: each may train alone", instead)


def _here(profile: Profile, name: str) -> list[tuple[str, str | None]]:
    """Return the SHA-256 of the script's copy on this machine, if any: users edit it here and forget to copy it."""
    if profile.job.target.kind not in ("script", "command"):
        return []
    if all(host.endpoint.is_local or in_sandbox(profile, host) for host in profile.hosts):
        return []
    if (place := _place_here(profile, 0, name)) is None:
        return []
    try:
        text, _ = private.read(place / expanded(name), _LARGEST_SCRIPT + 1)
    except (OSError, ValueError, private.NoRegularFileError):
        return []
    return [("this machine", hashlib.sha256(text).hexdigest())] if len(text) <= _LARGEST_SCRIPT else []


def _sides(found: Iterable[tuple[str, str | None]], commits: Mapping[str, str]) -> str:
    """Group hosts by their value, as `node1, node2 ≠ node3`; "" if all known values are equal."""
    groups = hosts_by_value(found)
    sides = (f"{names(group)}{_shared(group, commits)}" for group in groups.values())
    return " ≠ ".join(sides) if len(groups) > 1 else ""


def _shared(hosts: Sequence[str], commits: Mapping[str, str]) -> str:
    """Return the commit of all hosts, as ` (3f2a1bc with changes)`, or "" if it differs or is unknown."""
    at = {commits.get(host) for host in hosts}
    return f" ({found})" if len(at) == 1 and (found := at.pop()) else ""


def _between(profile: Profile, plan: Plan, facts: Sequence[HostFacts]) -> Iterator[Finding]:
    named = list(zip((host.name for host in plan.hosts), facts, strict=True))
    # With a master on loopback, it is intended that all hosts are one machine.
    known = plan.master == network.LOOPBACK
    for same in hosts_by_value((name, found.boot_id) for name, found in named).values():
        if len(same) > 1 and not known:
            what = f"{names(same)} are one machine, and share its cores and memory"
            yield Finding("warning", None, what, "List it once, unless this is intended")
    ahead = {host: found.time - found.seen for host, found in named}
    slow, fast = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    if ahead[fast] - ahead[slow] > CLOCKS_APART:
        what = f"the clock of {fast} is about {ahead[fast] - ahead[slow]:.0f} s ahead of that of {slow}"
        yield Finding("warning", None, what, "Synchronize their clocks (timedatectl set-ntp true)")
    interpreters = [find_python(profile, own, found)[1] for own, found in zip(profile.hosts, facts, strict=True)]
    pythons = hosts_by_value(
        (host.name, "Python {}.{}".format(*release(python.version)) if python else None)
        for host, python in zip(plan.hosts, interpreters, strict=True)
    )
    if len(pythons) > 1:
        what = ", ".join(f"{version} on {' and '.join(names)}" for version, names in pythons.items())
        yield Finding("warning", None, f"different interpreters: {what}", "Use the same on all: set `python`")
