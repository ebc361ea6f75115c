"""Translates the directives and counts of a Slurm job script to a draft of a profile. The script is never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pydantic import ValidationError

from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.hosts.discovery import flaw_of, spread
from disttui.runner.planning.interop import script_body
from disttui.runner.planning.interop.draft import Machine, Translation, Unread, count, shown
from disttui.runner.planning.interop.script_body import JobLine
from disttui.runner.planning.interop.shell import unknown_names
from disttui.runner.profile.fields import slug
from disttui.runner.profile.schema import MOST_HOSTS
from disttui.runner.profile.sections import Slurm

_KEYS = ("partition", "time", "account", "qos")


def take(line: int, name: str, value: str, draft: Translation) -> bool:
    """Translate one option that does not concern counts to the `slurm` section; return False if it is invalid there."""
    if name in _KEYS:
        if flaw := _flaw(name, value):
            draft.wrong(line, 1, f"{name}: {flaw[0]}", flaw[1])
        draft.slurm[name] = value
        draft.translated(line, name, f"{shown(value)} → slurm.{name}")
        return True
    option = _option(name, value)
    if _flaw("options", [option]):
        return False
    options = draft.slurm.setdefault("options", [])
    assert isinstance(options, list)
    options.append(option)
    draft.translated(line, name, "→ slurm.options")
    return True


def _take_counts(numbers: _Numbers, cpus: _Directive | None, draft: Translation) -> None:
    """Translate what the job requests on each node, and note what only the user can decide."""
    gpus = {"gpus_per_node": numbers.gpus} if numbers.gpus else {}
    draft.slurm = {"nodes": numbers.nodes, **gpus, **draft.slurm}
    draft.launch["launcher"] = "slurm"
    each = count(draft, cpus.line, "cpus-per-task", cpus.value) if cpus is not None else None
    if cpus is not None and each is not None:
        total = each * (numbers.tasks or 1)
        draft.slurm["cpus_per_node"] = total
        draft.translated(cpus.line, "cpus-per-task", f"{total} processors on each node → slurm.cpus_per_node")
    what = "its default is in the home folder; if the nodes do not share that, set a shared folder"
    draft.ambiguous(0, "launch.run_dir", what)
    if "workdir" not in draft.job:
        draft.ambiguous(0, "job.workdir", "sbatch starts in the folder where it is typed: write that folder")


def _option(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _flaw(key: str, value: object) -> tuple[str, str] | None:
    """Return what is wrong with a value of the `slurm` section and what was expected, or None."""
    try:
        Slurm.model_validate({key: value})
    except ValidationError as error:
        context = error.errors()[0].get("ctx", {})
        return str(context.get("what", "not text")), str(context.get("expected", ""))
    return None


_LONG = {
    "-A": "account", "-D": "chdir", "-G": "gpus", "-J": "job-name", "-N": "nodes", "-c": "cpus-per-task",
    "-e": "error", "-i": "input", "-n": "ntasks", "-o": "output", "-p": "partition", "-q": "qos", "-t": "time",
    "-w": "nodelist", "-x": "exclude", "-C": "constraint", "-d": "dependency", "-a": "array",
    "--tasks-per-node": "ntasks-per-node",
}  # fmt: skip
_QUEUE = "of Slurm's queue: to use it, import with --login LOGIN_NODE"
_LOGS = "each rank has its log in launch.run_dir"
_DROPPED = {
    **dict.fromkeys(
        ("account", "partition", "qos", "time", "constraint", "dependency", "reservation", "exclusive",
         "comment", "exclude", "begin", "deadline", "priority", "nice", "licenses", "hint", "oversubscribe",
         "wckey", "time-min", "mem", "mem-per-cpu", "mem-per-gpu", "tmp", "mail-type", "mail-user",
         "overcommit", "wait-all-nodes"),
        _QUEUE,
    ),
    **dict.fromkeys(("clusters", "no-requeue", "parsable"), "disttui submits the job, and chooses this"),
    "array": "a run is one job: disttui sweep starts many",
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    "input": "ranks have no standard input",
    "gpu-bind": "every rank takes the GPU of its LOCAL_RANK",
    "cpus-per-task": "disttui sets OMP_NUM_THREADS from the cores of the host",
    "kill-on-bad-exit": "a failed rank ends the run",
    "get-user-env": "ranks get the login's environment",
}  # fmt: skip
_AMBIGUOUS = {
    "requeue": "set launch.restarts to the number of further attempts",
    "signal": "ranks get SIGTERM and launch.grace seconds: set launch.grace",
}
_NUMBERS = (
    "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "gpus-per-node", "gpus", "gres", "gpus-per-task"
)  # fmt: skip
_GPUS = ("gpus", "gpus-per-node")
_TRES = {"tres-per-job": "gpus", "tres-per-node": "gres", "tres-per-task": "gpus-per-task"}
_OTHER_QUEUE = re.compile(r"^#(?:(?:PBS|BSUB|COBALT|OAR|PJM|MSUB)\b|\$ -)", re.MULTILINE)
_LONGEST = 1 << 16
"""Characters of the longest directive: shlex takes quadratic time for a long word."""


class _Directive(NamedTuple):
    line: int
    name: str
    value: str


def read(text: str, draft: Translation, hosts: int) -> None:
    """Translate the directives, the environment and the command that starts the job.

    Args:
        hosts: Number of --host options.
    """
    draft.job_script = True
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        draft.ambiguous(1, "line ends", "Windows line endings, which sbatch and bash reject: ignored")
    _refuse_others(text, draft)
    directives: dict[str, _Directive] = {}
    for one in _directives(text, draft):
        if one.name in directives:
            draft.ambiguous(directives[one.name].line, one.name, f"overridden on line {one.line}")
        directives[one.name] = one
    for one in directives.values():
        _take(one, draft)
    numbers = _counts(directives, draft, hosts)
    cpus = directives.get("cpus-per-task")
    if draft.login:
        _take_counts(numbers, cpus, draft)
    # Otherwise the command line of sbatch may set the number of nodes.
    nodes = numbers.nodes if draft.wanted or draft.hosts or hosts else None
    known = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), nodes and nodes * (numbers.tasks or 1)),
        **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), numbers.tasks),
        **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), numbers.gpus),
        "SLURM_CPUS_PER_TASK": cpus.value if cpus else None,
        "SLURM_JOB_NAME": draft.name or None,
    }
    command = script_body.read(text, {name: str(one) for name, one in known.items() if one is not None}, draft)
    if not (command and command.launcher == "mpirun" and _takes_hosts(command, draft, hosts)):
        _processes(numbers, command, draft)
    if not draft.login and (directives or "srun" in text):
        draft.ambiguous(0, "hosts", "over SSH, without Slurm's queue; with --login HOST instead: a Slurm job")


def _refuse_others(text: str, draft: Translation) -> None:
    """Reject scripts of another shell or queue, whose counts would be missed."""
    head, _, _ = text.partition("\n")
    if head.startswith("#!") and not re.search(r"[/ ](?:ba|da|k|z|a)?sh\b", head):
        draft.wrong(1, 1, shown(head), "expected a script of bash or sh")
    other = None if "\n#SBATCH" in text else _OTHER_QUEUE.search(text)
    if other:
        expected = "expected Slurm's: write #SBATCH --nodes=… and --gpus-per-node=… instead"
        draft.wrong(text.count("\n", 0, other.start()) + 1, 1, f"{other[0]} is a directive of another queue", expected)


def _directives(text: str, draft: Translation) -> Iterator[_Directive]:
    begun = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not line.startswith("#SBATCH"):
            begun = begun or bool(stripped and not stripped.startswith("#"))
            continue
        if begun:
            draft.dropped(number, "#SBATCH", "it is after the first command, and sbatch ignores it")
            continue
        if len(line) > _LONGEST:
            draft.wrong(number, 1, f"{len(line):,} characters", f"expected {_LONGEST:,} at most")
            continue
        try:
            words = shlex.split(line[len("#SBATCH") :], comments=True)
        except ValueError:
            if line.rstrip().endswith("\\"):
                draft.wrong(number, 1, "the line ends with a backslash", "expected each directive on one line")
            else:
                draft.wrong(number, 1, "the quotes do not match", "close them")
            continue
        yield from _options(number, words, draft)


def _options(number: int, words: list[str], draft: Translation) -> Iterator[_Directive]:
    flags = ("--exclusive", "--requeue", "--no-requeue", "--parsable", "--oversubscribe", "--get-user-env", "-s")
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in ("hetjob", "packjob"):
            what = "a heterogeneous job"
            draft.wrong(number, 1, what, "expected one part; import a hostfile, with slots per host")
            continue
        if not word.startswith("-"):
            draft.ambiguous(number, "#SBATCH", f"{shown(word)} is not an option; dropped")
            continue
        if not word.startswith("--") and len(word) > 2:
            name, value = word[:2], word[2:].removeprefix("=")
        elif not equals and name not in flags and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield _asked(number, _LONG.get(name) or _whole(name.lstrip("-")), value)


def _asked(number: int, name: str, value: str) -> _Directive:
    """Return a directive; a request for GPUs by `--tres-per-…` gets its older option name."""
    if name in ("gres", *_TRES):
        value = re.sub(r"(?:^|(?<=,))gres[/:]", "", value)
    found = re.search(r"(?:^|,)gpu(?:[:=]([^,]+))?", value) if name in _TRES else None
    if found is None:
        return _Directive(number, name, value)
    asked = (found[1] or "1").replace("=", ":")
    return _Directive(number, _TRES[name], f"gpu:{asked}" if name == "tres-per-node" else asked)


def _whole(name: str) -> str:
    """Complete an abbreviated option name: `err` is `error`."""
    known = {*_DROPPED, *_AMBIGUOUS, *_NUMBERS, *_TRES, "job-name", "chdir", "nodelist", "export"}
    meant = [one for one in known if one.startswith(name)]
    return meant[0] if name not in known and name and len(meant) == 1 else name


def _take(one: _Directive, draft: Translation) -> None:
    """Translate a directive that does not concern counts."""
    line, name, value = one
    if name in _NUMBERS:
        return
    if name == "job-name":
        draft.name = value
        draft.translated(line, name, f"{shown(value)} → name: {slug(value)}")
    elif name == "chdir" and value.startswith(("/", "~")) and "%" not in value:
        draft.job["workdir"] = value
        draft.translated(line, name, f"{shown(value)} → job.workdir")
    elif name == "export":
        script_body.take_export(line, value, draft)
    elif name == "chdir":
        draft.ambiguous(line, name, f"{shown(value)}: set job.workdir to the whole path")
    elif draft.login and (name == "cpus-per-task" or take(line, name, value, draft)):
        return
    elif name == "nodelist":
        _nodelist(one, draft)
    elif name in _DROPPED:
        flaw = _flaw("options", [_option(name, value)]) if draft.login and _DROPPED[name] == _QUEUE else None
        draft.dropped(line, name, flaw[0] if flaw else _DROPPED[name])
    elif name in _AMBIGUOUS:
        draft.ambiguous(line, name, f"{shown(value)}: {_AMBIGUOUS[name]}" if value else _AMBIGUOUS[name])
    else:
        draft.ambiguous(line, shown(name), "unknown; dropped")


def _nodelist(one: _Directive, draft: Translation) -> None:
    """Translate a list such as `n[1-3,7],m1`."""
    names: list[str] = []
    with suppress(InputError):
        names = spread(one.value)
    if not names or len(names) > MOST_HOSTS or any(map(flaw_of, names)):
        draft.wrong(one.line, 1, f"nodelist: {shown(one.value)}", "expected names like n[1-3],m1")
        return
    draft.hosts = [Machine(name) for name in dict.fromkeys(names)]
    draft.listed = True
    draft.translated(one.line, "nodelist", f"→ {amount(len(draft.hosts), 'host')}")


class _Numbers(NamedTuple):
    """Counts in the directives; tasks and GPUs are per host."""

    nodes: int
    tasks: int | None
    gpus: int | None
    unsure: bool = False
    """Whether GPUs are requested, but their number per host is unknown."""
    named: bool = True
    """Whether the number of nodes is known and not guessed as 1."""


def _number(
    directives: dict[str, _Directive], draft: Translation, name: str, pattern: str = r"(\d+)", most: int = 1024
) -> tuple[int, int | None]:
    """Return line and value of a numeric directive; the value is None if it is missing or invalid."""
    one = directives.get(name)
    if one is None:
        return 0, None
    found = re.fullmatch(pattern, one.value)
    return one.line, count(draft, one.line, name, found[1] if found else one.value, most)


def _counts(directives: dict[str, _Directive], draft: Translation, hosts: int) -> _Numbers:
    number = partial(_number, directives, draft)
    line, nodes = number("nodes", r"(\d+)(?:-\d+)?", MOST_HOSTS)
    if nodes is not None:
        text = directives["nodes"].value
        most = number("nodes", r"(?:\d+-)?(\d+)", MOST_HOSTS)[1] or nodes
        if most < nodes:
            draft.wrong(line, 1, f"nodes: {text}", "expected the smaller number first")
        if nodes != most:
            given = 0 if draft.login else len(draft.hosts) or hosts
            nodes = min(max(nodes, given), most)
            what = f"{text}: a profile needs one number → {nodes}"
            draft.guess("hosts", line, "nodes", what)
        draft.wanted, draft.wanted_by = nodes, (line, "nodes")
        become = "slurm.nodes" if draft.login else f"{nodes} host{'s' if nodes > 1 else ''}"
        draft.translated(line, "nodes", f"{nodes} → {become}")
        if draft.listed and len(draft.hosts) != nodes:
            draft.wrong(line, 1, f"nodes: {nodes}, but the nodelist has {len(draft.hosts)}", "expected the same number")
    line, tasks = number("ntasks-per-node")
    if tasks is not None:
        draft.translated(line, "ntasks-per-node", f"{amount(tasks, 'task')} on each host")
    line, total = number("ntasks", most=1024 * MOST_HOSTS)
    if nodes is None and not draft.listed:
        nodes = _nodes(directives, draft, tasks, total, hosts)
    named = bool(nodes or draft.hosts or hosts)
    nodes = nodes or len(draft.hosts) or hosts or 1
    if total is not None and total % nodes:
        what = f"ntasks: {total} is the total, not a multiple of {nodes} hosts"
        draft.wrong(line, 1, what, "expected a multiple; for unequal hosts import a hostfile, with slots per host")
    elif total is not None:
        draft.translated(line, "ntasks", f"{total} in all: {amount(total // nodes, 'task')} on each host")
        tasks = total // nodes
    gpus = _gpus(directives, draft, nodes, tasks)
    tasks = _by_gpu(*number("ntasks-per-gpu"), gpus, tasks, draft)
    asked = (one.name.startswith("gpus") or (one.name in _TRES and "gpu" in one.value) for one in directives.values())
    return _Numbers(nodes, tasks, gpus, not gpus and any(asked), named)


def _by_gpu(line: int, shared: int | None, gpus: int | None, tasks: int | None, draft: Translation) -> int | None:
    """Return the tasks on each host, derived from `--ntasks-per-gpu` if nothing else sets them."""
    if shared and gpus:
        tasks = tasks or shared * gpus
        draft.translated(line, "ntasks-per-gpu", f"{amount(tasks, 'task')} on each host")
    elif shared:
        note = draft.ambiguous if tasks else partial(draft.guess, "processes")
        note(line, "ntasks-per-gpu", f"{shared}: number of GPUs unknown; dropped")
    return tasks


def _nodes(
    directives: dict[str, _Directive], draft: Translation, tasks: int | None, total: int | None, hosts: int
) -> int | None:
    """Return the number of hosts that follows from totals, or None if Slurm would choose it."""
    asked, each = (_gpu_count(directives[name].value) if name in directives else None for name in _GPUS)
    pairs = ((total, tasks, "ntasks"), (asked, each, "gpus"))
    for whole, part, name in pairs:
        if whole and part:
            draft.wanted, draft.wanted_by = -(-whole // part), (directives[name].line, f"hosts by {name}")
            return draft.wanted
    for whole, name in ((total, "ntasks"), (asked, "gpus")):
        if whole and whole > 1 and not hosts:
            what = "the number of hosts is unknown without --nodes → 1, or those of --host"
            draft.guess("hosts", directives[name].line, "nodes", what)
            break
    return None


def _gpus(directives: dict[str, _Directive], draft: Translation, nodes: int, tasks: int | None) -> int | None:
    """Return the GPUs on each host. disttui's Slurm jobs request GPUs per node, so other requests are converted."""

    def left(one: _Directive, why: str) -> None:
        if not (draft.login and take(*one, draft)):
            draft.ambiguous(one.line, one.name, f"{shown(one.value)}: {why}; dropped")

    gpus = None
    for name in ("gpus-per-node", "gres"):
        if (one := directives.get(name)) is None:
            continue
        if name == "gres" and not re.search(r"(?:^|,)gpu\b", one.value):
            left(one, "unknown")
            continue
        asked = _gpu_count(one.value, of_kinds=name == "gres")
        if found := count(draft, one.line, name, one.value if asked is None else str(asked)):
            gpus = found
            draft.translated(one.line, name, f"{amount(found, 'GPU')} on each host")
            kinds = one.value if name == "gres" else ",".join(f"gpu:{kind}" for kind in one.value.split(","))
            if draft.login and kinds != f"gpu:{found}":
                take(one.line, "gres", kinds, draft)  # keeps their kind and other resources
    for name in ("gpus", "gpus-per-task"):
        if (one := directives.get(name)) is None:
            continue
        asked = _gpu_count(one.value) or 0
        each = asked * (tasks or 1) if name == "gpus-per-task" else asked // nodes if asked % nodes == 0 else 0
        if not each:
            why = "disttui uses free GPUs" if not draft.login else "write slurm.gpus_per_node"
            draft.ambiguous(one.line, name, f"{shown(one.value)}: {why}; dropped")
            continue
        gpus = each
        become = " → slurm.gpus_per_node" if draft.login else ""
        draft.translated(one.line, name, f"{amount(each, 'GPU')} on each node{become}")
        kind, _, _ = one.value.rpartition(":")
        if kind and "," not in one.value and draft.login:
            take(one.line, "gres", f"gpu:{kind}:{each}", draft)
    return gpus


def _gpu_count(text: str, *, of_kinds: bool = False) -> int | None:
    """Count the GPUs in `a100:2,v100:2`, or with `of_kinds` in `gpu:a100:2,nvme:1`; None if it cannot be parsed."""
    total = 0
    for part in text.split(","):
        of_kind = re.fullmatch(r"([A-Za-z_]\w*)(?::(.*))?", part) if of_kinds else None
        if of_kind and of_kind[1] != "gpu":
            continue
        given = part if not of_kinds else of_kind[2] or "1" if of_kind else ""
        found = re.fullmatch(r"(\d{1,6})|[\w.-]+(?::(\d{1,6}))?", given)
        if found is None:
            return None
        total += int(found[1] or found[2] or 1)
    return total


def _processes(numbers: _Numbers, command: JobLine | None, draft: Translation) -> None:
    """Set the ranks per host: the launcher's, or else one per task."""
    launcher = command.launcher if command else ""
    if command is not None:
        numbers = _nodes_of_command(command, numbers, draft)
        if draft.login and not numbers.gpus and (gpus := _srun_gpus(command)):
            draft.slurm["gpus_per_node"] = gpus
            draft.translated(command.line, "srun", f"{amount(gpus, 'GPU')} on each node → slurm.gpus_per_node")
    by_hand = sorted(command.assigned.keys() & {"RANK", "WORLD_SIZE"}) if command and not command.srun else []
    if command and by_hand and not launcher:
        draft.num_processes = 1
        what = f"the script sets {', '.join(by_hand)}, and starts the ranks itself → 1"
        draft.guess("processes", command.line, "num_processes", what)
        return
    if command is None or not launcher:
        _by_tasks(numbers, command, draft)
        return
    where, given = _given(command, numbers)
    if given.isascii() and given.isdigit() and len(given) < 8 and int(given):
        each, left = divmod(int(given), numbers.nodes if where in _TOTALS else 1)
        if where == "mpirun -np":  # not for Accelerate, which starts on one machine by default
            _doubt_nodes(command, where, int(given), numbers, draft)
        if left:
            draft.wrong(
                command.line, 1, f"{where}: {given} in all, for {numbers.nodes} nodes",
                "expected a multiple; for unequal hosts import a hostfile, with slots per host",
            )  # fmt: skip
        draft.num_processes = each
        draft.translated(command.line, where, f"{given} → num_processes: {each}")
        on_host = _srun_gpus(command) or numbers.gpus or 0
        if launcher == "torchrun" and each < on_host and "--nproc-per-node" not in command.options:
            what = f"{where} is not given: torchrun starts 1 per host, which has {on_host} GPUs"
            draft.ambiguous(command.line, "num_processes", what)
    elif given in ("gpu", "auto", "") or unknown_names(given) or "${" in given:
        draft.num_processes = gpus = _seen(_srun_gpus(command) or numbers.gpus, draft)
        what = f"{gpus}, the GPUs on each host" if gpus else "auto: one per GPU or core"
        sure = given in ("gpu", "auto") and not (gpus and _srun_gpus_unsure(command))
        note = draft.ambiguous if sure else partial(draft.guess, "processes")
        note(command.line, "num_processes", f"{where}: {shown(given) if given else 'not given'} → {what}")
    else:
        draft.guess("processes", command.line, "num_processes", f"{where}: {shown(given)} is unknown → auto")


def _hosts_asked(command: JobLine) -> Iterator[tuple[str, str, str]]:
    """Yield the options that set the number of hosts: each with its short name and its value, "" if it is missing."""
    by_srun = command.srun.get("-N", command.srun.get("--nodes", ""))
    given = [(name, command.options.get(name, "")) for name in ("--nnodes", "--num-machines", "--num-nodes")]
    # A script may call srun separately for each node.
    sure = any(re.fullmatch(r"[1-9]\d{0,4}", text) for _, text in given)
    if not sure:
        yield "srun --nodes", "nodes", by_srun
    for name, text in given:
        yield f"{command.launcher} {name}", name.lstrip("-"), text
    if sure:
        yield "srun --nodes", "nodes", by_srun
    total, each = _of_mpirun(command)
    if total and each:
        yield "mpirun -np", "hosts by mpirun -np", str(-(-total // each))
    tasks, on_each = command.srun.get("-n", command.srun.get("--ntasks", "")), command.srun.get("--ntasks-per-node", "")
    counted = re.fullmatch(r"[1-9]\d{0,6}", tasks) and re.fullmatch(r"[1-9]\d{0,3}", on_each)
    if counted and not by_srun[:1].isdigit():
        yield "srun --ntasks", "hosts by srun --ntasks", str(-(-int(tasks) // int(on_each)))
    included = command.options.get("--include", command.options.get("-i", ""))
    if command.launcher == "deepspeed" and included and not _REFERENCE.search(included):
        yield "deepspeed --include", "hosts by deepspeed --include", str(included.count("@") + 1)


def _uses_fewer(command: JobLine, nodes: int, draft: Translation) -> bool:
    """Whether srun and the launcher use only the given number of the nodes of the job."""
    srun = command.srun
    asked = {text for _, key, text in _hosts_asked(command) if key[0] == "n" and text}
    # A script may call srun for one node after the other.
    by_node = command.repeated or not srun.keys().isdisjoint(("-w", "--nodelist", "-r", "--relative"))
    by_node = by_node or not command.options.keys().isdisjoint(("--node-rank", "--machine-rank"))
    whole = not srun or srun.get("-N", srun.get("--nodes", "")) == str(nodes)
    return nodes < draft.wanted and asked == {str(nodes)} and whole and not by_node and not draft.listed


def _nodes_of_command(command: JobLine, numbers: _Numbers, draft: Translation) -> _Numbers:
    """Return the counts with the number of hosts in options of srun or the launcher, unless a directive sets it."""
    for label, key, text in _hosts_asked(command):
        least, _, most = text.partition("-" if label.startswith("srun") else ":")
        if not re.fullmatch(r"[1-9]\d{0,4}", least):
            if text and not draft.wanted:
                what = f"{shown(text)} is unknown → {amount(numbers.nodes, 'host')}, or those of --host"
                draft.guess("hosts", command.line, label, what)
            continue
        if most not in ("", least):
            if not draft.wanted:
                what = f"{shown(text)}: as many as there are → 1, or those of --host"
                draft.guess("hosts", command.line, label, what)
        elif key[0] == "n" and draft.wanted and _uses_fewer(command, int(least), draft):
            draft.ambiguous(command.line, label, f"{least} of the {draft.wanted} nodes → {amount(int(least), 'host')}")
            draft.wanted, draft.wanted_by = int(least), (command.line, key)
            numbers = numbers._replace(nodes=int(least))
            if draft.slurm:
                draft.slurm["nodes"] = int(least)
        elif draft.wanted and int(least) != draft.wanted:
            what = f"{least}, overridden by {draft.wanted_by[1]}: {draft.wanted}"
            draft.ambiguous(command.line, label, what)
        elif not draft.wanted and not draft.listed:
            draft.wanted, draft.wanted_by = int(least), (command.line, key)
            if draft.slurm:
                draft.slurm["nodes"] = int(least)
            numbers = numbers._replace(nodes=int(least), named=True)
    _doubt_hosts(command, numbers, draft)
    return numbers


def _doubt_hosts(command: JobLine, numbers: _Numbers, draft: Translation) -> None:
    """Note that files which are not read may name more hosts, and that torchrun without `--nnodes` uses only one."""
    file = next((name for name in _NAME_HOSTS.get(command.launcher, ()) if name in command.options), "")
    if file and not (numbers.named or draft.wanted or draft.listed or "hosts" in draft.guessed):
        what = f"{shown(command.options[file])} may name more hosts → 1, or those of --host"
        draft.guess("hosts", command.line, f"{command.launcher} {file}", what)
    asked = any(name in ("--nnodes", "--host") or unknown_names(name) for name in command.options)
    asked = asked or "PET_NNODES" in {*command.assigned, *draft.env}  # torchrun's own variable
    if command.launcher == "torchrun" and numbers.nodes > 1 and not (asked or file):
        what = f"without --nnodes it trains on one machine → on all {numbers.nodes} hosts together"
        note = draft.ambiguous if draft.wanted else partial(draft.guess, "processes")
        note(command.line, "torchrun", what)


_SPAWNS = re.compile(r"(?:^| )(--num-gpus[ =](?:[2-9]|\d\d)|--multiprocessing-distributed)(?= |$)")
"""Arguments of scripts that start their own processes: those of detectron2 and PyTorch's ImageNet example."""
_REFERENCE = re.compile(r"\$\{[^}]*\}")
"""A variable in an option, as the profile writes it."""
_TOTALS = ("accelerate --num-processes", "mpirun -np")
_NAME_HOSTS = {"accelerate": ("--config-file",), "deepspeed": ("--hostfile", "-H"), "torchrun": ("--hostfile",)}
"""Launcher → its options for files that may set the number of hosts; colossalai's is among those of torchrun."""


def _given(command: JobLine, numbers: _Numbers) -> tuple[str, str]:
    """Return the option that sets the number of ranks, and its value; `gpu` means one per GPU, "" unknown."""
    launcher, options = command.launcher, command.options
    if launcher == "mpirun":
        total, each = _of_mpirun(command)
        if each:
            return "mpirun", str(min(each, total or each))
        text = next((value for name, value in options.items() if name.lstrip("-") in script_body.MPI_TOTAL), "")
        return ("mpirun -np", text) if text else ("mpirun", str(numbers.tasks or ""))
    name = {"accelerate": "--num-processes", "deepspeed": "--num-gpus"}.get(launcher, "--nproc-per-node")
    included = options.get("--include", options.get("-i", "")) if launcher == "deepspeed" else ""
    slots = [part.partition(":")[2] for part in _REFERENCE.sub("$", included).split("@")]
    listed = {part.count(",") + 1 if part else 0 for part in slots}
    if "$" in "".join(slots) or _REFERENCE.fullmatch(included):
        return f"{launcher} --include", included
    if len(listed) == 1 and 0 not in listed:
        return f"{launcher} --include", str(*listed)
    # Words that only the shell can expand, and files that are not read here, may set it.
    files = _NAME_HOSTS.get(launcher, ()) if launcher != "torchrun" else ()
    unknown = any(name in files or unknown_names(name) for name in options)
    unknown = unknown or bool(re.fullmatch(r"\$\{var:\w+\}", command.value))
    # Accelerate's default is one for each GPU of one machine, which it divides by the number of machines.
    unknown = unknown or (launcher == "accelerate" and "--num-machines" in options and numbers.nodes > 1)
    unknown = unknown or (launcher == "deepspeed" and not options.keys().isdisjoint(("--exclude", "-e")))
    default = "" if unknown else "1" if launcher == "torchrun" else "gpu"
    return f"{launcher} {name}", options.get(name, default)


def _of_mpirun(command: JobLine) -> tuple[int, int]:
    """Return total and per-host ranks in mpirun's options; 0 if not set."""
    plain = {name.lstrip("-"): value for name, value in command.options.items()} if command.launcher == "mpirun" else {}
    totals = (plain[name] for name in script_body.MPI_TOTAL if name in plain)
    shares = (plain[name] or "1" for name in script_body.MPI_EACH if name in plain)
    total = next((int(text) for text in totals if re.fullmatch(r"\d{1,6}", text)), 0)
    found = (re.fullmatch(r"(?:ppr:)?(\d{1,6})(?::node.*)?", text) for text in shares)
    return total, next((int(one[1]) for one in found if one), 0)


def _takes_hosts(command: JobLine, draft: Translation, hosts: int) -> bool:
    """Translate the hosts of `mpirun -H n1:4,n2:4` with their processes; return False if either is unclear."""
    plain = {name.lstrip("-"): value for name, value in command.options.items()}
    text = next((plain[name] for name in ("H", "host", "hosts") if name in plain), "")
    parts = [re.fullmatch(r"([^\s:,]+)(?::([1-9]\d{0,3}))?", part) for part in text.split(",")] if text else []
    found = {part[1]: int(part[2] or 1) for part in parts if part and not flaw_of(part[1])}
    total, each = _of_mpirun(command)
    share, left = divmod(total, max(len(found), 1))
    counted = any(part and part[2] for part in parts)
    if each or (not counted and share and not left):
        found = dict.fromkeys(found, each or share)
    if text and (
        len(found) < len(parts) or total not in (0, sum(found.values())) or draft.listed or draft.login or hosts
    ):
        what = f"{shown(text)} names hosts: add --host, or import a hostfile"
        draft.ambiguous(command.line, "mpirun -H", what)
        return False
    draft.hosts = [Machine(name, slots) for name, slots in found.items()] or draft.hosts
    if found:
        draft.wanted, draft.wanted_by = len(found), (command.line, "the number of hosts of mpirun -H")
        draft.translated(command.line, "mpirun -H", "→ hosts, with the processes of each")
    return bool(found)


def _by_tasks(numbers: _Numbers, command: JobLine | None, draft: Translation) -> None:
    """Set the ranks per host to one per task, as srun starts them."""
    srun = command.srun if command else {}
    asked = [srun[name] for name in ("--ntasks-per-node", "-n", "--ntasks") if name in srun]
    own = _srun_tasks(command, numbers, draft) if command and asked else None
    tasks = own or numbers.tasks
    if command and not command.srun and (tasks or 1) > 1:
        what = f"{tasks} on each host, but {shown(command.value)} is started without srun: once, on the first host"
        draft.ambiguous(command.line, "tasks", what)
        tasks = 1
    gpus = _seen((_srun_gpus(command) if command else None) or numbers.gpus, draft) or 0
    spawns = _SPAWNS.search(" ".join(command.args)) if command and (tasks or 1) == 1 else None
    if spawns:
        draft.num_processes = 1
        what = f"{spawns[1]}: the script starts a process per GPU → 1"
        draft.ambiguous(command.line if command else 0, "num_processes", what)
    elif command and asked and not own:
        draft.num_processes = tasks if (tasks or 1) > 1 else gpus or None
        what = str(draft.num_processes or "auto: one per GPU or core")
        draft.guess("processes", command.line, "num_processes", f"srun: {shown(asked[0])} is unknown → {what}")
    elif numbers.unsure and not gpus and (tasks or 1) == 1:
        # A Slurm job only gets GPUs that it requests.
        draft.num_processes = 1 if draft.login else None
        become = draft.num_processes or "auto: one process per GPU"
        what = f"the number of GPUs per host is unknown → {become}"
        draft.guess("processes", command.line if command else 0, "num_processes", what)
    elif (tasks or 1) > 1 or gpus <= 1:
        draft.num_processes = tasks or gpus or (1 if command else None)
    else:
        if command and command.kind == "command":  # it may itself start a process per GPU
            draft.job.pop("command")
            draft.unread = Unread(command.line, shown(" ".join((command.value, *command.args))))
        draft.num_processes = gpus
        what = f"one task on each host, with {gpus} GPUs → {gpus}, one per GPU; write 1 if one process uses all"
        unsure = command and (not command.srun or _srun_gpus_unsure(command))
        note = partial(draft.guess, "processes") if unsure else draft.ambiguous
        note(command.line if command else 0, "num_processes", what)


def _srun_tasks(command: JobLine, numbers: _Numbers, draft: Translation) -> int | None:
    srun = command.srun
    texts = (
        srun.get("--ntasks-per-node", ""),
        srun.get("-n", srun.get("--ntasks", "")),
        srun.get("-N", srun.get("--nodes", "")),
    )
    per_node, total, nodes = (int(text) if re.fullmatch(r"[1-9]\d{0,6}", text) else None for text in texts)
    if total and not nodes:
        _doubt_nodes(command, "srun --ntasks", total, numbers, draft)
    each, left = divmod(total or 0, nodes or numbers.nodes)
    if left and not per_node:
        what = f"srun --ntasks: {total} in all, for {nodes or numbers.nodes} nodes"
        draft.wrong(
            command.line, 1, what, "expected a multiple; for unequal hosts import a hostfile, with slots per host"
        )
    return per_node or each or None


def _doubt_nodes(command: JobLine, name: str, total: int, numbers: _Numbers, draft: Translation) -> None:
    """Note that a total cannot be divided because the number of hosts is unknown."""
    if total > 1 and not (numbers.named or draft.wanted or "hosts" in draft.guessed):
        what = f"{total} in all; the number of hosts is unknown → 1, or those of --host"
        draft.guess("hosts", command.line, name, what)


def _seen(gpus: int | None, draft: Translation) -> int | None:
    """Return the GPUs per host that CUDA_VISIBLE_DEVICES leaves of those requested."""
    return min(gpus, draft.visible) if gpus and draft.visible else gpus or draft.visible


def _srun_gpus_unsure(command: JobLine) -> bool:
    """Whether the number of GPUs in srun's own options is a guess."""
    return not command.unsure.isdisjoint(("--gpus-per-node", "--gres"))


def _srun_gpus(command: JobLine) -> int | None:
    """Return the GPUs per host that srun's own options request, or None."""
    each, kinds = command.srun.get("--gpus-per-node"), command.srun.get("--gres", "")
    return _gpu_count(each) if each else _gpu_count(kinds, of_kinds=True) if kinds else None
