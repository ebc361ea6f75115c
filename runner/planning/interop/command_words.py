"""The words of a command line in a script: srun, torchrun and python, and what they start."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

LONGEST = 1 << 16
"""Characters of a line that is taken apart: for a long word, shlex needs time as the square of its length."""
_VALUED = {
    *("-A", "-J", "-N", "-c", "-e", "-i", "-n", "-o", "-p", "-t", "-w", "-x", "-G", "-D", "-m", "-r", "-M", "-T"),
    *("--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--nodelist", "--partition", "--account"),
    *("--job-name", "--output", "--error", "--time", "--mem", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gres"),
    *("--exclude", "--mpi", "--distribution", "--cpu-bind", "--export", "--jobid", "--container-image", "--chdir"),
}
"""Options of srun that take the next word as their value."""
_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--run-path", "--virtual-local-rank"}
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "2>&1", "&>"}
"""What follows is not of the command."""
_PROGRAMS = ("python", "torchrun")
"""A line without either starts no rank; to take it apart costs a hundred times as much as to see that."""
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass
class JobLine:
    """A line that starts a job, taken apart; nothing in it is expanded."""

    srun: dict[str, str] = field(default_factory=dict)
    """Options of srun, long names without dashes where they have them."""
    assigned: dict[str, str] = field(default_factory=dict)
    """Variables in front of it."""
    torchrun: dict[str, str] | None = None
    """Options of torchrun, with `-` in place of `_`; None: each task is a rank."""
    python: str = ""
    kind: str = ""
    """script, module or command; empty: nothing that is known is started."""
    value: str = ""
    args: tuple[str, ...] = ()


def command_of(line: str) -> JobLine | None:
    """The job that a line of a shell starts by srun, torchrun or python; None for any other line, or a longer one."""
    if len(line) > LONGEST or not any(program in line for program in _PROGRAMS):
        return None
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    found = JobLine()
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        name, _, value = words.pop(0).partition("=")
        found.assigned[name] = value
    while words and words[0] in ("exec", "time"):
        words.pop(0)
    if words and _base(words[0]) == "srun":
        words = _srun(words[1:], found)
        if len(words) == 3 and _base(words[0]) in ("bash", "sh") and words[1] in ("-c", "-lc"):
            inner = command_of(words[2])
            if inner is None or inner.srun:
                return None
            inner.srun, inner.assigned = found.srun, {**found.assigned, **inner.assigned}
            return inner
        found.srun.setdefault("", "")
    end = next((at for at, word in enumerate(words) if word in _ENDS), len(words))
    return _program(words[:end], found)


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _srun(words: Sequence[str], found: JobLine) -> list[str]:
    """Take srun's options off; the rest is what it starts."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if equals:
            found.srun[name] = value
        elif word in _VALUED and rest:
            found.srun[word] = rest.pop(0)
        else:
            found.srun[word] = ""
    return rest


def _program(words: list[str], found: JobLine) -> JobLine | None:
    if not words:
        return None
    first, rest = words[0], words[1:]
    base = _base(first)
    if base == "torchrun":
        return _torchrun(rest, found)
    if not (base in ("python", "python3") or base.startswith("python3.")):
        return None
    found.python = first
    while rest and rest[0] in ("-u", "-B", "-O", "-I", "-s", "-E"):
        rest.pop(0)
    if rest[:1] == ["-m"] and len(rest) > 1:
        if rest[1] in _MODULES:
            return _torchrun(rest[2:], found)
        found.kind, found.value, found.args = "module", rest[1], tuple(rest[2:])
        return found
    if not rest or rest[0].startswith("-"):
        return None
    found.kind, found.value, found.args = "script", rest[0], tuple(rest[1:])
    return found


def _torchrun(words: Sequence[str], found: JobLine) -> JobLine | None:
    rest, kind, options = list(words), "script", {}
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = name.replace("_", "-")
        if name in ("-m", "--module"):
            kind = "module"
        elif name in _TORCHRUN_FLAGS:
            kind = "command" if name == "--no-python" else kind
            options[name] = ""
        elif equals:
            options[name] = value
        elif rest:
            options[name] = rest.pop(0)
    if not rest:
        return None
    found.torchrun = options
    found.kind, found.value, found.args = kind, rest[0], tuple(rest[1:])
    return found
