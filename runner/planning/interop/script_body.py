"""The body of a job script → job, environment and `activate` of a draft, with a note on every command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from disttui.runner.planning.interop import from_accelerate
from disttui.runner.planning.interop.draft import Translation, shown
from disttui.runner.planning.interop.shell import (
    SimpleCommand,
    UnreadScriptError,
    Variables,
    Word,
    commands,
    only_unknown,
    unknown_names,
    variable_name,
)
from disttui.runner.text import quote

_VALUED = {
    *("-A", "-J", "-N", "-c", "-e", "-i", "-n", "-o", "-p", "-t", "-w", "-x", "-G", "-D", "-m", "-r", "-M", "-T"),
    *("--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--nodelist", "--partition", "--account"),
    *("--job-name", "--output", "--error", "--time", "--mem", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gres"),
    *("--exclude", "--mpi", "--distribution", "--cpu-bind", "--export", "--jobid", "--container-image", "--chdir"),
}
"""Options of srun that take the next word as their value."""
_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--run-path", "--virtual-local-rank"}
_ACCELERATE_FLAGS = {
    *("--cpu", "--multi-gpu", "--use-deepspeed", "--use-fsdp", "--use-parallelism-config", "--use-megatron-lm"),
    *("--use-xpu", "--use-mps-device", "--tpu", "--debug", "--quiet", "-q", "--no-python", "--enable-cpu-affinity"),
    *("--dynamo-use-dynamic", "--dynamo-use-fullgraph", "--tpu-use-cluster", "--tpu-use-sudo", "--downcast-bf16"),
}
_FLAGS = {"torchrun": _TORCHRUN_FLAGS, "accelerate": _ACCELERATE_FLAGS}
_MODULES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    "accelerate.commands.launch": "accelerate",
}


@dataclass
class JobLine:
    """A line that starts a job, taken apart; nothing in it is expanded."""

    srun: dict[str, str] = field(default_factory=dict)
    """Options of srun, long names without dashes where they have them."""
    assigned: dict[str, str] = field(default_factory=dict)
    """Variables in front of it."""
    launcher: str = ""
    """torchrun or accelerate; empty: each task is a rank."""
    options: dict[str, str] = field(default_factory=dict)
    """Of the launcher, with `-` in place of `_`."""
    line: int = 0
    names: frozenset[str] = frozenset()
    """The variables in its words."""
    python: str = ""
    kind: str = ""
    """script, module, command, or shell: `value` is a script of its own."""
    value: str = ""
    args: tuple[str, ...] = ()


def command_of(given: Sequence[str]) -> JobLine | None:
    """The job that a command starts by srun, torchrun, accelerate or python, or has a shell start; None: another."""
    words, found = list(given), JobLine()
    while words:
        name, equals, value = words[0].partition("=")
        if equals and name.isidentifier():
            found.assigned[name] = value
        elif name not in ("exec", "time", "env"):
            break
        words.pop(0)
    if words and _base(words[0]) == "srun":
        words = _srun(words[1:], found)
        found.srun.setdefault("", "")
    if words[:1] == ["eval"]:
        found.kind, found.value = "shell", " ".join(words[1:])
        return found
    if len(words) >= 3 and _base(words[0]) in ("bash", "sh") and words[1] in ("-c", "-lc"):
        found.kind, found.value = "shell", words[2]
        return found
    return _program(words, found)


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
    if base == "accelerate" and rest[:1] == ["launch"]:
        base = f"accelerate-{rest.pop(0)}"
    if base in ("torchrun", "accelerate-launch"):
        return _launcher(base.removesuffix("-launch"), rest, found)
    if not (base in ("python", "python3") or base.startswith("python3.")):
        return None
    found.python = first
    while rest and rest[0] in ("-u", "-B", "-O", "-I", "-s", "-E"):
        rest.pop(0)
    if rest[:1] == ["-m"] and len(rest) > 1:
        if launcher := _MODULES.get(rest[1]):
            return _launcher(launcher, rest[2:], found)
        found.kind, found.value, found.args = "module", rest[1], tuple(rest[2:])
        return found
    if not rest or rest[0].startswith("-"):
        return None
    found.kind, found.value, found.args = "script", rest[0], tuple(rest[1:])
    return found


def _launcher(launcher: str, words: Sequence[str], found: JobLine) -> JobLine | None:
    rest, kind = list(words), "script"
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = name.replace("_", "-")
        if name in ("-m", "--module"):
            kind = "module"
        elif name in _FLAGS[launcher]:
            kind = "command" if name == "--no-python" else kind
            found.options[name] = ""
        elif equals:
            found.options[name] = value
        elif rest:
            found.options[name] = rest.pop(0)
    if not rest:
        return None
    found.launcher = launcher
    found.kind, found.value, found.args = kind, rest[0], tuple(rest[1:])
    return found


_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_WITHIN = ("then", "do", "else", "elif", "!")
_SETUP = ("source", ".", "module", "ml", "conda", "mamba", "micromamba", "spack", "ulimit", "umask")
"""What prepares the environment of the job, as `activate` does."""
_OF_THE_SCRIPT = {
    **dict.fromkeys(("echo", "printf", "date", "which", "ls", "pwd", "env", "nvidia-smi", "clear"), "it prints only"),
    **dict.fromkeys(("set", "shopt", "shift", "getopts", "trap"), "it is for this script's own shell"),
    **dict.fromkeys(("sleep", "wait", "exit", "true", ":", "return"), "it starts nothing"),
}
_DISTTUI_SETS = {
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"),
}
_BY_DISTTUI = "disttui sets it"
_LAUNCHER_DOES = {
    *("num-machines", "machine-rank", "main-process-ip", "main-process-port", "role", "tee", "log-dir", "redirects"),
    *("rdzv-backend", "rdzv-conf", "rdzv-id", "rdzv-endpoint", "nnodes", "node-rank", "master-addr", "master-port"),
    *("same-network", "multi-gpu", "standalone", "monitor-interval", "local-addr"),
}
_MOST_NESTED = 5


class _Step(NamedTuple):
    """What the script does before the job."""

    line: int
    source: str
    name: str = ""
    """Of an exported variable; `source` is its assignment then."""
    value: str = ""


def read(text: str, known: Mapping[str, str], draft: Translation) -> JobLine | None:
    """Take over what prepares the job, and the command that starts it; returns that.

    Args:
        known: Variables that Slurm sets.
    """
    body = _Body(known, draft)
    body.read(text, 0, JobLine())
    return body.finish()


class _Body:
    def __init__(self, known: Mapping[str, str], draft: Translation) -> None:
        self._draft = draft
        self._variables = Variables(dict(known))
        self._steps: list[_Step] = []
        self._assigned: list[tuple[int, str]] = []
        self._jobs: list[tuple[JobLine, int]] = []
        """Each with the number of the steps before it."""
        self._open: list[str] = []
        self._block = (0, "", list[str]())
        """Of what is not evaluated: its line, its first word, and the variables that it may set."""
        self._last = 0
        """The last line of the script."""

    def read(self, text: str, above: int, outer: JobLine, depth: int = 0) -> None:
        """Take over the commands of a script, or of one inside a word of line `above`."""
        self._last = max(self._last, above or len(text.splitlines()))
        try:
            for command in commands(text):
                self._command(replace(command, line=above) if above else command, outer, depth)
        except UnreadScriptError as error:
            line, what = error.args
            self._draft.ambiguous(above or line, "…", what)

    def _command(self, command: SimpleCommand, outer: JobLine, depth: int) -> None:
        words = list(command.words)
        while words and words[0].source in _WITHIN:
            words.pop(0)
        if not words:
            return
        first = words[0].source
        if self._open and first == self._open[-1]:
            self._open.pop()
            if not self._open:
                self._end_block(command.line)
            return
        if first in _OPENS:
            if not self._open:
                self._block = (command.line, first, [])
            self._open.append(_OPENS[first])
            return
        assignments = []
        while words and re.match(r"[A-Za-z_]\w*\+?=", words[0].source):
            assignments.append(words.pop(0))
        if not words:
            for word in assignments:
                self._assign(command.line, word)
        elif first in ("export", "declare", "typeset", "readonly"):
            for word in words[1:]:
                self._export(command.line, word)
        else:
            self._program(command, words, outer, depth)

    def _end_block(self, end: int) -> None:
        line, first, names = self._block
        for name in names:
            self._variables.forget(name, f"it depends on the `{first}` of line {line}")
        may = f"; may set {', '.join(dict.fromkeys(names))}" if names else ""
        self._draft.ambiguous(line, first, f"lines {line} to {end} are not evaluated, and lost{may}")

    def _assign(self, line: int, word: Word) -> str:
        """Take over `NAME=value`; returns the name."""
        name, _, _ = word.source.partition("=")
        added, name = name.endswith("+"), name.rstrip("+")
        if self._open or added:
            self._variables.forget(name, f"it is set in the block of line {self._block[0]}" if self._open else "+=")
            self._block[2].append(name)
            return name
        first, *rest = word.pieces
        self._variables.assign(
            name, Word(word.source[len(name) + 1 :], (first._replace(text=first.text[len(name) + 1 :]), *rest))
        )
        self._assigned.append((line, name))
        return name

    def _export(self, line: int, word: Word) -> None:
        if not re.match(r"[A-Za-z_]\w*(?:=|$)", word.source):
            return
        name = self._assign(line, word) if "=" in word.source else word.source
        if not self._open:
            self._assigned = [each for each in self._assigned if each != (line, name)]
            self._steps.append(_Step(line, word.source, name, self._variables.values.get(name, "")))

    def _program(self, command: SimpleCommand, words: list[Word], outer: JobLine, depth: int) -> None:
        line, first, before = command.line, words[0].source, len(self._jobs)
        fields = [field for word in command.words for field in self._variables.fields(word)]
        if job := command_of(fields):
            pieces = (piece for word in command.words for piece in word.pieces)
            job.line, job.names = line, outer.names.union(piece.text for piece in pieces if piece.kind == "name")
            job.srun, job.assigned = outer.srun | job.srun, outer.assigned | job.assigned
            if job.kind != "shell":
                self._jobs.append((job, len(self._steps)))
            elif depth < _MOST_NESTED and "conda" not in command.source[:60]:
                self.read(job.value, line, job, depth + 1)
        if self._open or len(self._jobs) > before:
            return
        if first in _SETUP or (first == "eval" and "conda" in command.source):
            self._steps.append(_Step(line, command.source))
        elif first == "cd":
            self._folder(line, fields)
        elif first in _OF_THE_SCRIPT:
            self._draft.dropped(line, shown(first), _OF_THE_SCRIPT[first])
        elif first == "unset":
            for word in words[1:]:
                self._variables.forget(word.source, "unset")
            self._draft.dropped(line, first, "it takes out what the script has, and no profile has")
        else:
            self._draft.ambiguous(line, shown(first), "not understood, and not run; dropped")

    def _folder(self, line: int, fields: list[str]) -> None:
        where = fields[1] if len(fields) > 1 else "~"
        if where.startswith(("/", "~")) and not unknown_names(where):
            self._draft.job["workdir"] = where
            self._draft.translated(line, "cd", f"{shown(where)} → job.workdir")
        else:
            self._draft.ambiguous(line, "cd", f"{shown(self._variables.shown(where))}: write the folder as job.workdir")

    def finish(self) -> JobLine | None:
        """Put the job together, with what stands before it."""
        if self._open:
            self._end_block(self._last)
        best, job = len(self._steps), None
        if self._jobs:
            # What starts ranks comes before what only prepares.
            job, best = max(self._jobs, key=lambda each: (bool(each[0].launcher), bool(each[0].srun)))
            for other, _ in self._jobs:
                if other is not job:
                    what = "another command: a profile starts one; dropped"
                    self._draft.ambiguous(other.line, shown(self._variables.shown(other.value)), what)
            job = self._job(job)
        used = self._used(job)
        for line, name in self._assigned:
            why = "its value stands where it is used" if name in used else "nothing that is taken over uses it"
            self._draft.dropped(line, name, self._variables.why.get(name, why) if name in used else why)
        setup = list[str]()
        for at, step in enumerate(self._steps):
            if at >= best and job:
                self._draft.dropped(step.line, shown(step.name or step.source), "after the job")
            elif step.name:
                setup += self._environment(step, used, job)
            elif kept := self._kept(step.line, step.source):
                setup += kept
                self._draft.translated(step.line, shown(step.source), "→ activate")
        self._draft.activate = " && ".join(dict.fromkeys(setup))
        return job

    def _used(self, job: JobLine | None) -> set[str]:
        """The names whose values are in the job's command, at any depth."""
        found = set(job.names) if job else set()
        while more := {part for name in found for part in self._variables.parts.get(name, ())} - found:
            found |= more
        return found

    def _environment(self, step: _Step, used: set[str], job: JobLine | None) -> list[str]:
        """Take over an export; returns what `activate` has to do for it."""
        draft, line, name = self._draft, step.line, step.name
        if name in _DISTTUI_SETS:
            draft.dropped(line, name, _BY_DISTTUI)
        elif name in used and len(step.value.split()) > 1:
            draft.translated(line, name, f"words of the command in line {job.line if job else 0}")
        elif step.value and not unknown_names(step.value):
            draft.env[name] = self._variables.shown(step.value)
            draft.translated(line, name, f"{shown(step.value)} → job.env")
        elif step.value and not self._computed(step.value):
            if kept := self._kept(line, f"export {step.source}", (name,)):
                draft.translated(line, name, f"{shown(step.source)} → activate")
                return kept
        elif step.value:
            draft.env[name] = self._variables.shown(step.value)
            draft.translated(line, name, f"{shown(draft.env[name])} → job.env")
        else:
            why = self._variables.why.get(name, "it is empty")
            draft.ambiguous(line, name, f"{why}; dropped: give its value under job.env")
        return []

    def _computed(self, value: str) -> bool:
        """Whether something in it is not the environment's."""
        known = (self._variables.why, self._variables.defaults)
        return any(name in each for name in unknown_names(value) for each in known)

    def _kept(self, line: int, source: str, seen: tuple[str, ...] = ()) -> list[str]:
        """A line for `activate`, behind the assignments that it needs; empty, and a note, where it cannot be kept."""
        before, variables = list[str](), self._variables
        for name in re.findall(r"\$\{?(\w+|[@*])", source):
            if name in seen:
                continue
            value, written = variables.values.get(name), variables.assigned.get(name)
            if value is not None and not unknown_names(value):
                before.append(f"{name}={quote(value)}")
            elif written and len(seen) < _MOST_NESTED:
                if not (needed := self._kept(line, written, (*seen, name))):
                    return []
                before += needed
            elif name in variables.why or not name.isidentifier() or name.startswith("SLURM"):
                why = variables.why.get(name, "the script or Slurm sets it")
                self._draft.ambiguous(line, shown(source), f"${name} is not known ({why}); dropped")
                return []
        return [*before, source]

    def _job(self, job: JobLine) -> JobLine:
        """Take over the command; returns it with references to variables in place of what is not known."""
        draft, line, values = self._draft, job.line, self._variables
        args = tuple(word for word in job.args if only_unknown(word) != "@")
        if len(args) < len(job.args):
            draft.ambiguous(line, '"$@"', "arguments of sbatch: none are given here; add yours to job.args")
        given = [value for name, value in job.options.items() if self._becomes_variable(job.launcher, name)]
        kept = (job.value, *args, *job.assigned.values(), *map(values.settled, given))
        self._name_unknown(line, [name for word in kept for name in unknown_names(word)], args)
        made = replace(
            job,
            value=values.shown(job.value),
            args=tuple(map(values.shown, args)),
            options={name: values.shown(values.settled(value)) for name, value in job.options.items()},
        )
        draft.translated(line, "srun" if job.srun else "command", f"{shown(made.value)} → job.{made.kind}")
        for name, value in job.assigned.items():
            draft.env[name] = values.shown(value)
            draft.translated(line, shown(name), "→ job.env")
        for name in job.srun:
            if name not in ("", "-N", "-n", "--nodes", "--ntasks", "--ntasks-per-node"):
                draft.dropped(line, f"srun {shown(name)}", "disttui starts the ranks itself")
        if made.launcher == "accelerate":
            draft.launch["launcher"] = "accelerate"
            draft.translated(line, "accelerate launch", "→ launch.launcher: accelerate")
        for name, value in made.options.items():
            self._option(line, made.launcher, name, value)
        if made.kind == "command":
            draft.job["command"] = [made.value, *made.args]
        else:
            draft.job[made.kind] = made.value
            if made.args:
                draft.job["args"] = list(made.args)
            if made.python.startswith(("/", "~/")) and not unknown_names(made.python):
                draft.python = made.python
        return made

    def _name_unknown(self, line: int, uses: list[str], args: tuple[str, ...]) -> None:
        """Name what a profile's variables have to give; a default of several words, or of none, is a list."""
        values = self._variables
        words = {only_unknown(word) for word in args} & values.divided
        for name in sorted(set(uses)):
            why, default = values.why.get(name, "the script does not set it"), values.defaults.get(name)
            what = f"{why}: --set var.{variable_name(name)}=… gives it"
            what += "" if default is None else f", else it is {shown(default)}"
            if name in words and uses.count(name) == 1:
                what += "; a list gives several words, as its shell would make of it"
                if default is not None and len(default.split()) != 1:
                    self._draft.variables[name] = values.defaults.pop(name).split()
            self._draft.ambiguous(line, f"${name}", what)

    @staticmethod
    def _becomes_variable(launcher: str, option: str) -> str | None:
        """The variable by which Accelerate gives an option of its launcher to the script."""
        key = option.lstrip("-").replace("-", "_")
        return from_accelerate.variable_of(key) if launcher == "accelerate" else None

    def _option(self, line: int, launcher: str, name: str, value: str) -> None:
        """An option of the launcher."""
        draft, plain = self._draft, name.lstrip("-")
        label = f"{launcher} {shown(name)}"
        variable = self._becomes_variable(launcher, name)
        if plain in ("nproc-per-node", "num-processes", "no-python"):
            return
        if plain == "max-restarts" and value.isascii() and value.isdigit() and int(value[:6]) <= 1000:
            draft.launch["restarts"] = int(value[:6])
            draft.translated(line, label, f"→ launch.restarts: {value}")
        elif plain in _LAUNCHER_DOES:
            draft.dropped(line, label, _BY_DISTTUI)
        elif plain == "config-file" and launcher == "accelerate":
            what = f"{shown(value)} is not read: disttui profile import it, and take over its job.env"
            draft.ambiguous(line, label, what)
        elif plain == "cpu" and launcher == "accelerate":
            draft.launch["backend"] = "gloo"
            draft.translated(line, label, "→ launch.backend: gloo")
        elif variable:
            draft.env[variable] = value or "true"
            draft.translated(line, label, f"→ job.env: {variable}")
        elif launcher == "torchrun":
            draft.dropped(line, label, _BY_DISTTUI)
        else:
            draft.ambiguous(line, label, "not known here; dropped")
