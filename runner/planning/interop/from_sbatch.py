"""A job script of Slurm → a draft of a profile. Its body is never run; only lines that start a job are understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from runner.errors import InputError
from runner.hosts.discovery.candidate import flaw_of, spread
from runner.planning.interop import slurm_section
from runner.planning.interop.command_words import LONGEST, JobLine, command_of
from runner.planning.interop.draft import Machine, Translation, count, shown
from runner.profile.fields import slug
from runner.profile.schema import MOST_HOSTS

_LONG = {
    "-A": "account", "-D": "chdir", "-G": "gpus", "-J": "job-name", "-N": "nodes", "-c": "cpus-per-task",
    "-e": "error", "-i": "input", "-n": "ntasks", "-o": "output", "-p": "partition", "-q": "qos", "-t": "time",
    "-w": "nodelist", "-x": "exclude", "-C": "constraint", "-d": "dependency", "-a": "array",
}  # fmt: skip
_QUEUE = "of Slurm's queue: to run as a job of it, import with --login, the login node"
_LOGS = "every rank has a log of its own in launch.run_dir"
_DROPPED = {
    **dict.fromkeys(
        ("account", "partition", "qos", "time", "constraint", "dependency", "reservation", "exclusive",
         "comment", "exclude", "begin", "deadline", "priority", "nice", "licenses", "hint", "oversubscribe",
         "wckey", "time-min", "mem", "mem-per-cpu", "mem-per-gpu", "tmp", "mail-type", "mail-user"),
        _QUEUE,
    ),
    **dict.fromkeys(("clusters", "no-requeue", "parsable"), "disttui submits the job, and chooses this"),
    "array": "a run is one job: disttui sweep starts many",
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    "input": "ranks read nothing from their standard input",
    "cpus-per-task": "disttui sets OMP_NUM_THREADS from the cores of the host",
    "kill-on-bad-exit": "a failed rank ends the run",
    "export": "variables stand in job.env",
    "get-user-env": "the login's environment is there",
}  # fmt: skip
_AMBIGUOUS = {
    "requeue": "launch.restarts makes further attempts: choose how many",
    "signal": "ranks get SIGTERM, and launch.grace seconds: choose how many",
}
_NUMBERS = ("nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gpus", "gres", "gpus-per-task")
_RUN_BY_DISTTUI = "disttui sets it"


class _BodyLine(NamedTuple):
    number: int
    text: str


class _Directive(NamedTuple):
    line: int
    name: str
    value: str


def read(text: str, draft: Translation) -> None:
    """Take over the directives, and the line that starts the job."""
    draft.job_script = True
    directives: dict[str, _Directive] = {}
    for one in _directives(text, draft):
        if one.name in directives:
            draft.ambiguous(directives[one.name].line, one.name, f"given again on line {one.line}, which counts")
        directives[one.name] = one
    for one in directives.values():
        _take(one, draft)
    numbers = _counts(directives, draft)
    if draft.login:
        cpus = directives.get("cpus-per-task")
        given = (cpus.line, cpus.value) if cpus else None
        slurm_section.take_counts(numbers.nodes, numbers.tasks, numbers.gpus, given, draft)
    command = _body(text, draft)
    if command is not None:
        _job(command, draft)
    _processes(numbers, command, draft)
    if not draft.login:
        draft.ambiguous(0, "hosts", "reached by SSH, past Slurm's queue; --login HOST in place of them: a job of Slurm")


def _directives(text: str, draft: Translation) -> Iterator[_Directive]:
    begun = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not line.startswith("#SBATCH"):
            begun = begun or bool(stripped and not stripped.startswith("#"))
            continue
        if begun:
            draft.dropped(number, "#SBATCH", "it stands below the first command, where sbatch does not read it either")
            continue
        if len(line) > LONGEST:
            draft.wrong(number, 1, f"{len(line):,} characters", f"expected {LONGEST:,} at most")
            continue
        try:
            words = shlex.split(line[len("#SBATCH") :], comments=True)
        except ValueError:
            draft.wrong(number, 1, "the quotes do not match", "close them")
            continue
        yield from _options(number, words, draft)


def _options(number: int, words: list[str], draft: Translation) -> Iterator[_Directive]:
    flags = ("--exclusive", "--requeue", "--no-requeue", "--parsable", "--oversubscribe", "--get-user-env", "-s")
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            draft.ambiguous(number, "#SBATCH", f"{shown(word)} is no option; dropped")
            continue
        if not word.startswith("--") and len(word) > 2:
            name, value = word[:2], word[2:].removeprefix("=")
        elif not equals and name not in flags and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield _Directive(number, _LONG.get(name, name.lstrip("-")), value)


def _take(one: _Directive, draft: Translation) -> None:
    """One directive that says nothing of counts."""
    line, name, value = one
    if name in _NUMBERS:
        return
    if name == "job-name":
        draft.name = value
        draft.translated(line, name, f"{shown(value)} → name: {slug(value)}")
    elif name == "chdir" and value.startswith(("/", "~")) and "%" not in value:
        draft.job["workdir"] = value
        draft.translated(line, name, f"{shown(value)} → job.workdir")
    elif draft.login and (name == "cpus-per-task" or slurm_section.take(line, name, value, draft)):
        return
    elif name == "nodelist":
        _nodelist(one, draft)
    elif name in _DROPPED:
        fits_not = draft.login and _DROPPED[name] == _QUEUE
        draft.dropped(line, name, slurm_section.why_not(name, value) if fits_not else _DROPPED[name])
    elif name in _AMBIGUOUS:
        draft.ambiguous(line, name, f"{shown(value)}: {_AMBIGUOUS[name]}" if value else _AMBIGUOUS[name])
    else:
        draft.ambiguous(line, shown(name), "not known here; dropped")


def _nodelist(one: _Directive, draft: Translation) -> None:
    """`n[1-3,7],m1`: commas inside brackets part numbers, others names."""
    names: list[str] = []
    try:
        for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", one.value):
            for whole in _parts(part)[:MOST_HOSTS]:
                names += spread(whole)
            if len(names) > MOST_HOSTS:
                raise InputError(f"more than {MOST_HOSTS:,} hosts")
    except InputError as error:
        draft.wrong(one.line, 1, f"nodelist: {error.what}", "expected names like n[1-3],m1")
        return
    if not names or any(map(flaw_of, names)):
        draft.wrong(one.line, 1, f"nodelist: {shown(one.value)}", "expected names like n[1-3],m1")
        return
    draft.hosts = [Machine(name) for name in dict.fromkeys(names)]
    draft.listed = True
    draft.translated(one.line, "nodelist", f"→ {len(draft.hosts)} host{'s' if len(draft.hosts) > 1 else ''}")


def _parts(part: str) -> list[str]:
    """`n[1-3,7]` → `n[1-3]`, `n7`."""
    inside = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if inside is None:
        return [part]
    before, numbers, after = inside.groups()
    return [f"{before}[{n}]{after}" if "-" in n else f"{before}{n}{after}" for n in numbers.split(",")]


class _Numbers(NamedTuple):
    """What the directives say of counts; per host."""

    nodes: int
    tasks: int | None
    gpus: int | None


def _number(
    directives: dict[str, _Directive], draft: Translation, name: str, pattern: str = r"(\d+)", most: int = 1024
) -> tuple[int, int | None]:
    """The line and the value of a directive that says a number; None where it is not there."""
    one = directives.get(name)
    if one is None:
        return 0, None
    found = re.fullmatch(pattern, one.value)
    return one.line, count(draft, one.line, name, found[1] if found else one.value, most)


def _counts(directives: dict[str, _Directive], draft: Translation) -> _Numbers:
    number = partial(_number, directives, draft)
    line, nodes = number("nodes", r"(\d+)(?:-\1)?", MOST_HOSTS)
    if nodes is not None:
        draft.wanted, draft.wanted_by = nodes, (line, "nodes")
        become = "slurm.nodes" if draft.login else f"{nodes} host{'s' if nodes > 1 else ''}"
        draft.translated(line, "nodes", f"{nodes} → {become}")
        if draft.listed and len(draft.hosts) != nodes:
            draft.wrong(line, 1, f"nodes: {nodes}, and the nodelist has {len(draft.hosts)}", "expected the same number")
    nodes = nodes or len(draft.hosts) or 1
    line, tasks = number("ntasks-per-node")
    if tasks is not None:
        draft.translated(line, "ntasks-per-node", f"{tasks} tasks on each host")
    line, total = number("ntasks", most=1024 * MOST_HOSTS)
    if total is not None and total % nodes:
        what = f"ntasks: {total} is the total, and {nodes} hosts cannot share it equally"
        draft.wrong(line, 1, what, "expected a multiple; for unequal hosts import a hostfile, with slots for each")
    elif total is not None:
        draft.translated(line, "ntasks", f"{total} in all: {total // nodes} tasks on each host")
        tasks = tasks or total // nodes
    return _Numbers(nodes, tasks, _gpus(directives, draft, nodes, tasks))


def _gpus(directives: dict[str, _Directive], draft: Translation, nodes: int, tasks: int | None) -> int | None:
    """GPUs on each host. A job of disttui's has one task on each node: requests by task or in all become such."""

    def left(one: _Directive, why: str) -> None:
        if not (draft.login and slurm_section.take(*one, draft)):
            draft.ambiguous(one.line, one.name, f"{shown(one.value)}: {why}; dropped")

    gpus = None
    for name, pattern in (("gpus-per-node", r"(?:[\w.-]+:)?(\d+)"), ("gres", r"gpu(?::[\w.-]+)?:(\d+)")):
        one = directives.get(name)
        if one is not None and name == "gres" and not one.value.startswith("gpu"):
            left(one, "not known here")
            continue
        line, found = _number(directives, draft, name, pattern)
        if one is not None and found is not None:
            gpus = found
            draft.translated(line, name, f"{found} GPUs on each host")
            if draft.login and one.value.count(":") > (name == "gres"):
                slurm_section.take(line, "gres", f"gpu:{one.value.removeprefix('gpu:')}", draft)  # with their kind
    for name in ("gpus", "gpus-per-task"):
        if (one := directives.get(name)) is None:
            continue
        kind, _, number = one.value.rpartition(":")
        asked = int(number) if re.fullmatch(r"\d{1,6}", number) else 0
        each = asked * (tasks or 0) if name == "gpus-per-task" else asked // nodes if asked % nodes == 0 else 0
        if not (draft.login and each):
            why = "disttui takes the GPUs that nobody uses" if not draft.login else "write slurm.gpus_per_node"
            draft.ambiguous(one.line, name, f"{shown(one.value)}: {why}; dropped")
            continue
        gpus = each
        draft.translated(one.line, name, f"{each} GPUs on each node → slurm.gpus_per_node")
        if kind:
            slurm_section.take(one.line, "gres", f"gpu:{kind}:{each}", draft)
    return gpus


def _body(text: str, draft: Translation) -> JobLine | None:
    """The line that starts the job; a note on every other."""
    found: list[tuple[int, JobLine]] = []
    for number, line in _commands(text):
        command = command_of(line)
        if command is None:
            draft.ambiguous(number, shown(line.split(None, 1)[0]), "not understood, and not run; dropped")
        else:
            found.append((number, command))
    if not found:
        return None
    # What starts ranks comes before what only prepares.
    best = max(found, key=lambda each: (each[1].torchrun is not None, bool(each[1].srun)))
    for number, command in found:
        if command is not best[1]:
            draft.ambiguous(number, shown(command.value), "another command: a profile starts one; dropped")
    number, command = best
    draft.translated(number, "srun" if command.srun else "command", f"{shown(command.value)} → job.{command.kind}")
    _notes_of(number, command, draft)
    return command


def _commands(text: str) -> Iterator[_BodyLine]:
    """Lines of the body, continued ones put together."""
    start, held = 0, list[str]()
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not held and (not stripped or stripped.startswith("#")):
            continue
        start = start if held else number
        goes_on = stripped.endswith("\\")
        held.append(stripped[:-1].rstrip() if goes_on else stripped)
        if goes_on and number < len(lines):
            continue
        if whole := " ".join(held).strip():
            yield _BodyLine(start, whole)
        held = []


def _notes_of(number: int, command: JobLine, draft: Translation) -> None:
    for name, value in command.assigned.items():
        if "$" in value or "`" in value:
            draft.ambiguous(number, shown(name), f"{shown(value)}: no shell expands it; write the value under job.env")
        else:
            draft.env[name] = value
            draft.translated(number, shown(name), "→ job.env")
    for name in command.srun:
        if name not in ("", "-N", "-n", "--nodes", "--ntasks", "--ntasks-per-node"):
            draft.dropped(number, f"srun {shown(name)}", "disttui starts the ranks itself")
    if expanded := [word for word in (command.value, *command.args) if "$" in word or "`" in word]:
        draft.ambiguous(number, "job.args", f"{shown(expanded[0])}: no shell expands it; write the value")
    for name, value in (command.torchrun or {}).items():
        if name not in ("--nproc-per-node", "--max-restarts", "--no-python"):
            draft.dropped(number, f"torchrun {shown(name)}", _RUN_BY_DISTTUI)
        elif name == "--max-restarts" and value.isascii() and value.isdigit() and int(value[:6]) <= 1000:
            draft.launch["restarts"] = int(value[:6])
            draft.translated(number, "torchrun --max-restarts", f"→ launch.restarts: {value}")


def _job(command: JobLine, draft: Translation) -> None:
    if command.kind == "command":
        draft.job["command"] = [command.value, *command.args]
        return
    draft.job[command.kind] = command.value
    if command.args:
        draft.job["args"] = list(command.args)
    if command.python.startswith(("/", "~/")):
        draft.python = command.python


def _processes(numbers: _Numbers, command: JobLine | None, draft: Translation) -> None:
    """Ranks per host: of torchrun, else one for each task."""
    options = command.torchrun if command else None
    if options is None:
        tasks = numbers.tasks
        if command and command.srun:
            tasks = _srun_tasks(command, numbers) or tasks
        draft.num_processes = tasks or numbers.gpus or (1 if command else None)
        return
    given = options.get("--nproc-per-node", "1")
    if given.isascii() and given.isdigit() and len(given) < 5:
        draft.num_processes = int(given)
    elif given in ("gpu", "auto") or "$" in given:
        draft.num_processes = numbers.gpus
        what = f"{numbers.gpus}, the GPUs on each host" if numbers.gpus else "auto: one for each GPU, or each core"
        draft.ambiguous(0, "num_processes", f"torchrun has {shown(given)} → {what}")
    else:
        draft.ambiguous(0, "num_processes", f"torchrun has {shown(given)}, which is not known here → auto")


def _srun_tasks(command: JobLine, numbers: _Numbers) -> int | None:
    read_one: Callable[[str], int | None] = lambda text: int(text) if re.fullmatch(r"[1-9]\d{0,6}", text) else None  # noqa: E731
    per_node = read_one(command.srun.get("--ntasks-per-node", ""))
    total = read_one(command.srun.get("-n", command.srun.get("--ntasks", "")))
    if per_node is None and total is not None and total % numbers.nodes == 0:
        return total // numbers.nodes
    return per_node
