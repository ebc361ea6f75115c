"""Translates the body of a job script to job, environment and `activate` of a draft, with a note on each command."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from disttui.runner.hosts.discovery import flaw_of
from disttui.runner.planning.interop import from_accelerate, front_ends
from disttui.runner.planning.interop.draft import Machine, Translation, Unread, is_set_by_disttui, shown
from disttui.runner.planning.interop.shell import (
    COUNTS_GPUS,
    Piece,
    SimpleCommand,
    State,
    UnreadScriptError,
    Variables,
    Word,
    as_written,
    at_home,
    commands,
    formatted,
    only_unknown,
    unknown_names,
    variable_name,
)
from disttui.runner.profile.fields import OWN_VARIABLES
from disttui.runner.text import quote

_VALUED = {
    *("-A", "-B", "-C", "-D", "-G", "-J", "-L", "-M", "-N", "-S", "-T", "-W", "-b", "-c", "-d", "-e", "-i", "-m", "-n"),
    *("-o", "-p", "-q", "-r", "-t", "-w", "-x", "--account", "--acctg-freq", "--begin", "--chdir", "--clusters"),
    *("--comment", "--constraint", "--container", "--container-env", "--container-image", "--container-mounts"),
    *("--container-name", "--container-save", "--container-workdir", "--core-spec", "--cores-per-socket", "--cpu-bind"),
    *("--cpu-freq", "--cpu_bind", "--cpus-per-gpu", "--cpus-per-task", "--deadline", "--delay-boot", "--dependency"),
    *("--distribution", "--environment", "--epilog", "--error", "--exclude", "--export", "--extra-node-info"),
    *("--gpu-bind", "--gpu-freq", "--gpus", "--gpus-per-node", "--gpus-per-socket", "--gpus-per-task", "--gres"),
    *("--gres-flags", "--het-group", "--hint", "--input", "--job-name", "--jobid", "--licenses", "--mem", "--mem-bind"),
    *("--mem-per-cpu", "--mem-per-gpu", "--mem_bind", "--mincpus", "--mpi", "--network", "--nodefile", "--nodelist"),
    *("--nodes", "--ntasks", "--ntasks-per-core", "--ntasks-per-gpu", "--ntasks-per-node", "--ntasks-per-socket"),
    *("--open-mode", "--output", "--partition", "--priority", "--profile", "--prolog", "--qos", "--relative"),
    *("--reservation", "--signal", "--sockets-per-node", "--switches", "--task-epilog", "--task-prolog"),
    *("--tasks-per-node", "--thread-spec", "--threads", "--threads-per-core", "--time", "--time-min", "--tmp"),
    *("--tres-per-task", "--wait", "--wckey"),
}
"""Options of srun that take the next word as their value."""
_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--run-path", "--virtual-local-rank", "--use-env", "--legacy"}
_ACCELERATE_FLAGS = {
    *("--cpu", "--multi-gpu", "--use-deepspeed", "--use-fsdp", "--use-parallelism-config", "--use-megatron-lm"),
    *("--use-xpu", "--use-mps-device", "--tpu", "--debug", "--quiet", "-q", "--no-python", "--enable-cpu-affinity"),
    *("--dynamo-use-dynamic", "--dynamo-use-fullgraph", "--tpu-use-cluster", "--tpu-use-sudo", "--downcast-bf16"),
    *("--dynamo-use-regional-compilation", "--no-tpu-use-cluster", "--no-tpu-use-sudo", "--same-network"),
}
_DEEPSPEED_FLAGS = {
    *("--no-python", "--no-local-rank", "--no-ssh", "--no-ssh-check", "--save-pid", "--force-multi"),
    *("--elastic-training", "--bind-cores-to-rank"),
}
_MPIRUN_FLAGS = {
    *("--allow-run-as-root", "--oversubscribe", "--nooversubscribe", "--report-bindings", "--tag-output", "--pernode"),
    *("--display-map", "--display-allocation", "--enable-recovery", "--nolocal", "--verbose", "-v", "-q", "--quiet"),
    *("-pernode", "-bynode", "-nolocal", "-prepend-rank", "-l", "-genvall", "--bynode", "--bycore", "--bysocket"),
}
_FLAGS = {
    "torchrun": _TORCHRUN_FLAGS,
    "accelerate": _ACCELERATE_FLAGS,
    "deepspeed": _DEEPSPEED_FLAGS,
    "mpirun": _MPIRUN_FLAGS,
}
_MODULES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    "accelerate.commands.launch": "accelerate",
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), "deepspeed"),
}
_PROGRAMS = {
    **dict.fromkeys(("torchrun", "torch-run", "torch_run"), "torchrun"),
    **dict.fromkeys(("accelerate-launch",), "accelerate"),
    **dict.fromkeys(("deepspeed", "ds"), "deepspeed"),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "ibrun"), "mpirun"),
}
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
_PLAIN_WRAPPERS = (
    "exec",
    "time",
    "command",
    "nohup",
    "nice",
    "ionice",
    "stdbuf",
    "unbuffer",
    "env",
    "timeout",
    "tini",
    "setsid",
)
"""Programs that start the next one unchanged."""
_CONTAINERS = {
    **dict.fromkeys(("apptainer", "singularity"), "apptainer"),
    **{name: name for name in ("docker", "podman", "enroot")},
    **dict.fromkeys(("nvidia-docker", "shifter", "sarus", "ch-run"), ""),
}
"""Container program → its runtime in a profile, "" if not supported."""
_ENVIRONMENTS = ("uv", "poetry", "pixi", "pipenv", "conda", "mamba", "micromamba", "hatch", "pdm", "rye", "rez-env")
_AROUND = ("numactl", "taskset", "nsys", "ncu", "nvprof", "dlprof", "perf", "strace", "catchsegv", "chrt", "hwloc-bind")
_WRAPPERS = {*_PLAIN_WRAPPERS, *_CONTAINERS, *_ENVIRONMENTS, *_AROUND}
_INNER = {"env", "nohup", "timeout", *_ENVIRONMENTS, *_AROUND}
"""Wrappers that a container may start."""
_OTHER_LAUNCHERS = {
    *("jsrun", "aprun", "flux", "lrun", "tune", "colossalai", "torchx", "lightning", "fabric", "xargs", "ssh"),
    *("xpmem", "bagua", "xla_dist", "runai", "sky", "pdsh", "clush", "parallel"),
}
"""Programs that start processes in their own way, which is not translated."""
_WORDS_READ = "its arguments are another command's output", "Write the arguments after the command, without xargs."
_ELSEWHERE = (
    "the script connects to the other hosts itself",
    "Write only the launcher's command there, and add --host for each host in the order of node ranks.",
)
_GIVES_LOCAL_RANK = "--pass-local-rank"
"""A made-up option for torch.distributed.launch, which passes the script an argument that torchrun does not."""
_TO_DECIDE = {
    "pass-local-rank": "torch.distributed.launch passes --local-rank: let the script read LOCAL_RANK instead",
    **dict.fromkeys(
        ("exclude", "e"), "leave such hosts out of --host; for single GPUs write gpus: […] beside the host"
    ),
    "no-local-rank": "launcher deepspeed passes --local_rank: if the script rejects it, use launcher: torchrun",
}
"""Options without a counterpart, each with what the user must decide."""
_SHORT = re.compile(r"\A--(?:(nproc).*|nnode)\Z", re.DOTALL)
"""Abbreviated options of torchrun."""
_OPTION = re.compile(r"--?[A-Za-z][\w-]*(?:=.*)?", re.DOTALL)
_IN_PLACE = {"xargs": _WORDS_READ, **dict.fromkeys(("ssh", "pdsh", "clush", "parallel"), _ELSEWHERE)}
"""Program → why it is not translated if it starts a launcher, and what to write instead."""
_PASSED_ON = ("it gets the command of a launcher as its arguments", "Write only the launcher's command there.")
_NAMES_LAUNCHER = re.compile(
    r"(?:^|[\s/])(?:torchrun|accelerate launch|deepspeed|mpirun|mpiexec|torch\.distributed\.\w+)\s"
)
_PREPARES = {
    *("hostname", "nvidia-smi", "rocm-smi", "dcgmi", "mkdir", "cp", "mv", "rm", "ln", "rsync", "tar", "unzip", "chmod"),
    *("cat", "ls", "echo", "date", "df", "free", "lscpu", "printenv", "touch", "sleep", "wget", "curl", "git", "pip"),
    *("pip3", "scontrol", "sbcast", "killall", "which", "true", "sudo", "test", "[", "module", "ulimit", "find", "sed"),
    *("venv", "virtualenv", "ensurepip"),
}
"""Programs that never train, even if srun starts them."""


@dataclass
class JobLine:
    """The parts of a command that starts a job."""

    srun: dict[str, str] = field(default_factory=dict)
    """srun's options, as `--name` or `-n` → value; nonempty if srun starts the job."""
    assigned: dict[str, str] = field(default_factory=dict)
    """Variables assigned before it."""
    around: list[tuple[str, ...]] = field(default_factory=list)
    """The programs before it, each with its arguments: uv run, numactl, apptainer exec."""
    launcher: str = ""
    """torchrun, accelerate, deepspeed or mpirun; "" if each task is a rank."""
    options: dict[str, str] = field(default_factory=dict)
    """The launcher's options, with `-` instead of `_`."""
    line: int = 0
    names: frozenset[str] = frozenset()
    """The variables in its words."""
    variables: Variables | None = None
    """What was known about the variables that it uses."""
    repeated: bool = False
    """Whether it may run several times, as in a loop and before `&`."""
    unsure: frozenset[str] = frozenset()
    """The options whose value is a guess, because the script may set the variable in it."""
    expanded: tuple[str, ...] = ()
    """Its words that a shell replaces by names of files or by several words, such as `*.bin` and `{a,b}`."""
    python: str = ""
    program: str = ""
    """The launcher's path, if it is given with its folder."""
    kind: str = ""
    """script, module, command, shell (`value` is the text of a script), or unread (`value` cannot be translated)."""
    value: str = ""
    args: tuple[str, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    """The script's variables."""
    why: str = ""
    """If `kind` is unread: `why` it is not translated, and as `cure` what to write instead."""
    cure: str = ""


def command_of(given: Sequence[str], known: Mapping[str, str], outer: JobLine) -> JobLine | None:
    """Return the job that a command starts, directly or by a shell, or None.

    Args:
        known: The script's variables.
        outer: The command that starts the shell around it.
    """
    becomes_rank = given[:1] == ["exec"] and bool(outer.srun or outer.launcher)
    return _started(list(given[becomes_rank:]), JobLine(known=known, srun={"": ""} if becomes_rank else {}))


def _started(words: list[str], found: JobLine) -> JobLine | None:
    """Return the job that the words start, after the wrappers before it."""
    before = words[: words.index(":")] if ":" in words else []
    if any(_base(word) == "srun" or _PROGRAMS.get(_base(word)) == "mpirun" for word in before):
        found.kind, found.value = "unread", " ".join(words)
        found.why, found.cure = "the hosts start unequal programs", "Write the command of one of them, without the `:`."
        return found
    while words and (at := _inner(words := _with_python(words), found)):
        words = words[at:]
    return _program(words, found) if words else None


def _with_python(words: list[str]) -> list[str]:
    """Rewrite `uv run -m pkg.train` as `uv run python -m pkg.train`."""
    if _base(words[0]) in _ENVIRONMENTS and words[1:2] == ["run"]:
        at = next((at for at in range(2, len(words)) if words[at] in ("-m", "--module") or _starts(words, at)), 0)
        if at and not _starts(words, at):
            return [*words[:at], "python", "-m", *words[at + 1 :]]
    return words


def _inner(words: list[str], found: JobLine) -> int:
    """Return the number of words before the program that the first word starts, or 0 if the first is the job."""
    name, equals, value = words[0].partition("=")
    if equals and name.isidentifier():
        found.assigned[name] = value
        return 1
    base = _base(words[0])
    if base == "srun":
        found.srun.setdefault("", "")
        rest = _options(words[1:], found.srun, _VALUED, frozenset())
        return 0 if "--multi-prog" in found.srun else len(words) - len(rest)
    if base not in _WRAPPERS and not (found.srun and not _starts(words, 0) and base not in _OTHER_LAUNCHERS):
        return 0
    if _CONTAINERS.get(base) and not {"run", "exec", "start"} & {*words}:
        return 0  # docker build -t deepspeed .
    if base in _ENVIRONMENTS and base != "rez-env" and "run" not in words:
        return 0  # uv pip install deepspeed accelerate
    known = base in _WRAPPERS  # a script may be an argument of other programs: xtuner train config.py
    at = next(
        (
            at
            for at in range(1, len(words))
            if (_starts(words, at) and (known or not words[at].endswith(".py"))) or _base(words[at]) in _INNER
        ),
        0,
    )
    if at and base == "env":
        found.assigned |= {name: value for name, _, value in (word.partition("=") for word in words[1:at]) if value}
    if at and base not in _PLAIN_WRAPPERS:
        found.around.append(tuple(words[:at]))
    return at


def _starts(words: Sequence[str], at: int) -> bool:
    """Whether a word is a known program, and not the value of an option."""
    if words[at - 1 if at else 0] in ("--python", "-p", "--entrypoint"):
        return False
    base = _base(words[at])
    known = (
        front_ends.starts_ranks(words[at : at + 3])
        or base in ("python", "python3", "srun", *_SHELLS, *_PROGRAMS)
        or base.startswith("python3.")
    )
    return known or base.endswith(".py") or (base == "accelerate" and words[at + 1 : at + 2] == ["launch"])


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _options(
    words: Sequence[str], found: dict[str, str], valued: AbstractSet[str], flags: AbstractSet[str]
) -> list[str]:
    """Move a program's options from the words to `found`; return the remaining words, which it starts."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        meant = [one for one in valued if name[:2] == "--" and name not in valued and one.startswith(name)]
        name = meant[0] if len(meant) == 1 else "--ntasks-per-node" if name == "--tasks-per-node" else name
        if word[:2] in valued and len(word) > 2:
            found[word[:2]] = word[2:].removeprefix("=")
        elif equals:
            found[name] = value
        elif word in flags or not rest or (valued and name not in valued):
            found[name] = ""
        else:
            found[name] = rest.pop(0)
    return rest


def _program(words: list[str], found: JobLine) -> JobLine | None:
    first, rest = words[0], words[1:]
    base = _base(first)
    if base == "eval":
        found.kind, found.value = "shell", " ".join(rest)
        return found
    if base in _SHELLS:
        return _shell(words, found)
    launcher = "accelerate" if base == "accelerate" and rest[:1] == ["launch"] else _PROGRAMS.get(base)
    if launcher:
        found.program = first if "/" in first and launcher != "mpirun" else ""
        return _launcher(launcher, rest[base == "accelerate" :], found)
    if front_ends.starts_ranks(words):
        return _behind(words, found)
    if base in ("python", "python3") or base.startswith("python3."):
        return _python(first, rest, found)
    if base.endswith(".py"):
        return _rank("script", words, found)
    return _other(words, found)


def _behind(words: list[str], found: JobLine) -> JobLine | None:
    """Translate a library's program that runs a launcher or starts ranks itself."""
    behind = front_ends.behind(words, {**found.known, **found.assigned})
    if not behind.words:
        found.kind, found.value, found.why, found.cure = "unread", " ".join(words), behind.why, behind.cure
        return found
    kept = {name: value for name, value in found.assigned.items() if name not in behind.taken}
    found.assigned = {**kept, **behind.env}
    return _program(behind.words, found)


def _passes_on(words: Sequence[str]) -> bool:
    """Whether the arguments of a program are a launcher's command: `submit.py --gpus 8 -- torchrun a.py`."""
    last = max((at for at, word in enumerate(words) if word[:1] == "-" or _is_script(word)), default=0)
    for at in range(1, len(words) - 1):
        word, after = words[at : at + 2]
        plain = (words[at - 1][:1] != "-" or words[at - 1] == "--") and at < last
        if (word == "-m" and after in ("torch.distributed.run", "torch.distributed.launch")) or (
            plain and (_PROGRAMS.get(_base(word)) == "torchrun" or (_base(word), after) == ("accelerate", "launch"))
        ):
            return True
    return False


def _other(words: list[str], found: JobLine) -> JobLine | None:
    """Classify an unknown program: it is a rank, starts ranks in its own way (unread), or is not part of the job."""
    first, rest = words[0], words[1:]
    base = _base(first)
    starts = base in {"srun", *_OTHER_LAUNCHERS} or base.endswith(".sh") or (base in _AROUND and len(rest) > 1)
    starts = starts or (base in _WRAPPERS and rest[:1] in (["run"], ["exec"], ["start"]))
    passes_on = base not in {*_PREPARES, *_WRAPPERS, *_OF_THE_SCRIPT, *_TESTS, *_SETUP, *_IN_PLACE} and _passes_on(
        words
    )
    starts = starts or passes_on
    if starts or only_unknown(first):
        found.kind, found.value = "unread", " ".join(words)
        if passes_on:
            found.why, found.cure = _PASSED_ON
        if base in _IN_PLACE and _NAMES_LAUNCHER.search(found.value):
            found.why, found.cure = _IN_PLACE[base]
        return found if starts or found.launcher or found.srun else None
    if not (found.launcher or found.srun) or base in {*_PREPARES, *_WRAPPERS}:
        return None
    found.kind, found.value, found.args = "command", first, tuple(rest)
    return found


def _shell(words: list[str], found: JobLine) -> JobLine | None:
    """Translate a shell: the text of `-c`, possibly after other options such as `-l`, or a script that is not read."""
    rest = words[1:]
    while rest and rest[0][:1] in ("-", "+"):
        option = rest.pop(0)
        if "c" in option and option[:2] != "--" and rest:
            found.kind, found.value = "shell", rest[0]
            return found
        if option[-1] in "oO" and option[:2] != "--" and rest:
            rest.pop(0)  # -euo pipefail
    if rest and not only_unknown(rest[0]):
        found.kind, found.value = "unread", " ".join(words)
        return found
    return None


def _python(first: str, rest: list[str], found: JobLine) -> JobLine | None:
    found.python = first
    while rest and (re.fullmatch(r"-[uBOIsEqvbdixPS]+", rest[0]) or rest[0][:2] in ("-X", "-W")):
        if rest.pop(0) in ("-X", "-W") and rest:
            rest.pop(0)
    if rest and re.fullmatch(r"-[uBOIsEqvbdixPS]+m", rest[0]):
        rest[0] = "-m"
    if rest[:1] == ["-m"] and len(rest) > 1:
        if launcher := _MODULES.get(rest[1]):
            made = _launcher(launcher, rest[2:], found)
            if made and rest[1] == "torch.distributed.launch" and "--use-env" not in made.options:
                made.options[_GIVES_LOCAL_RANK] = ""
            return made
        program = front_ends.as_program(rest[1]) or rest[1]
        if front_ends.starts_ranks([program, *rest[2:]]) and program != "litgpt":
            return _behind([program, *rest[2:]], found)
        if rest[1] in _OTHER_LAUNCHERS:
            return _other(rest[1:], found)
        if rest[1] in _PREPARES:
            return None
        return _rank("module", rest[1:], found)
    if not rest or rest[0].startswith("-"):
        return None
    starts = _PROGRAMS.get(_base(rest[0])) in ("torchrun", "deepspeed") or _base(rest[0]) == "deepy.py"
    if starts or _base(" ".join(rest[:2])) == "accelerate launch":
        return _program(rest, found)  # python $(which torchrun)
    return _rank("script", rest, found)


def _rank(kind: str, words: Sequence[str], found: JobLine) -> JobLine:
    """Translate what each rank runs: a script or module, unless it gets another launcher's command."""
    if _passes_on(words):
        found.kind, found.value = "unread", " ".join(words)
        found.why, found.cure = _PASSED_ON
        return found
    found.kind, found.value, found.args = kind, words[0], tuple(words[1:])
    return found


def _launcher(launcher: str, words: Sequence[str], found: JobLine) -> JobLine | None:
    rest, kind = list(words), "script"
    options: dict[str, str] = {}
    while (
        rest
        and rest[0] != "--"
        and (rest[0].startswith("-") or (only_unknown(rest[0]) and any(map(_is_script, rest[1:]))))
    ):
        if not rest[0].startswith("-"):
            options[rest.pop(0)] = ""
            continue
        name, equals, value = rest.pop(0).partition("=")
        name = _SHORT.sub(lambda found: f"--{found[1]}-per-node" if found[1] else "--nnodes", name).replace("_", "-")
        if launcher != "mpirun" and name in ("-m", "--module"):
            kind = "module"
        elif name in _FLAGS[launcher]:
            kind = "command" if name == "--no-python" else kind
            options[name] = ""
        elif equals:
            options[name] = value
        elif not rest or _OPTION.fullmatch(rest[0]) or (launcher == "mpirun" and _starts(rest, 0)):
            options[name] = ""
        else:
            value = rest.pop(0)
            if launcher == "mpirun" and name in ("-x", "-env", "-genv"):
                _take_variable(name, value, rest, found, options)
            elif launcher == "mpirun" and name.lstrip("-") in ("mca", "pmixmca", "gmca", "prtemca") and rest:
                options[f"{name} {value}"] = rest.pop(0)
            else:
                options[name] = value
    rest = rest[rest[:1] == ["--"] :]
    if not rest:
        return None
    found.around += [_mpirun_words(found)] if found.launcher == "mpirun" else []
    found.launcher, found.options = launcher, options
    if launcher == "mpirun":
        return _started(rest, found)  # a program for each rank, or a launcher that starts the ranks of its host
    del rest[1 : 1 + (rest[1:2] == ["--"])]  # argparse removes it
    # These launchers run a script, not a program such as python.
    python = kind == "script" and re.fullmatch(r"python[\d.]*", _base(rest[0]))
    started = ("unread", " ".join((launcher, *rest)), ()) if python else (kind, rest[0], tuple(rest[1:]))
    found.kind, found.value, found.args = started
    return found


def _mpirun_words(job: JobLine) -> tuple[str, ...]:
    """Return the mpirun command of a job in which mpirun starts another launcher on each host."""
    return ("mpirun", *(word for pair in job.options.items() for word in pair if word))


def _put_into(job: JobLine, outer: JobLine) -> None:
    """Add to a job the options, variables and wrappers of the shell that starts it."""
    job.srun, job.assigned = outer.srun | job.srun, outer.assigned | job.assigned
    job.around = [*outer.around, *job.around]
    if outer.launcher == "mpirun" and not job.launcher:
        job.launcher, job.options = outer.launcher, outer.options
    elif outer.launcher == "mpirun":
        job.around.append(_mpirun_words(outer))


def _take_variable(option: str, value: str, rest: list[str], found: JobLine, options: dict[str, str]) -> None:
    """Translate a variable that mpirun sets for the ranks: `-x NAME=value`, `-x NAME`, `-genv NAME value`."""
    name, equals, text = value.partition("=")
    stored = found.known.get(name)
    if equals or option != "-x":
        found.assigned[name] = rest.pop(0) if not equals and rest else text
    elif stored is None:
        options[f"-x {name}"] = ""
    elif not unknown_names(stored):
        found.assigned[name] = stored


def _unquoted_name(word: Word) -> Word:
    """Rewrite `"NAME=value"` as `NAME="value"`."""
    if not (found := re.match(r"(['\"])([A-Za-z_]\w*\+?=)", word.source)):
        return word
    return Word(f"{found[2]}{found[1]}{word.source[found.end() :]}", word.pieces[found[1] == '"' :])


def _sides(word: Word) -> tuple[str, Word]:
    """Return the name and the value of `NAME=value`; that of `NAME+=value` begins with the name's value."""
    name, _, _ = word.source.partition("=")
    first, *rest = word.pieces
    pieces = (first._replace(text=first.text[len(name) + 1 :]), *rest)
    before = (Piece("name", name.rstrip("+"), quoted=True),) if name.endswith("+") else ()
    return name.rstrip("+"), Word(word.source[len(name) + 1 :], (*before, *pieces))


def _expands(word: Word) -> bool:
    """Whether a shell replaces a word by names of files or by several words."""
    return any(piece.kind == "text" and not piece.quoted and _EXPANDS.search(piece.text) for piece in word.pieces)


def _is_script(word: str) -> bool:
    return word.endswith(".py") or word in ("-m", "--module")


_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_WITHIN = ("then", "do", "else", "elif", "!", "{")
_TESTS = ("[", "[[", "test", "command", "which", "type", "grep")
_SETUP = ("source", ".", "module", "ml", "conda", "mamba", "micromamba", "spack", "ulimit", "umask")
"""Commands that prepare the job's environment, which become `activate`."""
_HOOK = re.compile("conda|mamba")
_PREPARED = re.compile(
    r"(?:^|/)(?:activate|\.?bashrc|\.?(?:bash_)?profile|conda\.sh|mamba\.sh|(?:modules?|lmod)\.sh|bash)$"
)
"""Files that set up an environment, but not the script's own variables."""
_OF_THE_SCRIPT = {
    **dict.fromkeys(("echo", "printf", "date", "which", "ls", "pwd", "env", "nvidia-smi", "clear"), "it prints only"),
    **dict.fromkeys(("((", "let"), "it is computed when the job starts"),
    **dict.fromkeys(("set", "shopt", "shift", "getopts", "trap"), "it is only for this script's shell"),
    **dict.fromkeys(("sleep", "wait", "exit", "true", ":", "return"), "it starts nothing"),
    "tee": "disttui keeps the output of every rank",
}
MPI_TOTAL = ("np", "n", "c")
MPI_EACH = ("npernode", "N", "ppn", "perhost", "map-by", "pernode")
"""Options of mpirun, without dashes, for the number of ranks: in total (MPI_TOTAL) and on each host (MPI_EACH)."""
_BY_DISTTUI = "disttui sets it"
_COUNTED_OPTIONS = ("--nproc-per-node", "--num-processes", "--num-gpus")
_COUNTS: dict[str, Literal["hosts", "processes"]] = {
    **dict.fromkeys(("--nnodes", "--num-machines", "--num-nodes", "-N", "--nodes"), "hosts"),
    **dict.fromkeys(
        (
            *_COUNTED_OPTIONS,
            "-n",
            "--ntasks",
            "--ntasks-per-node",
            "--include",
            *(f"mpirun {one}" for one in (*MPI_TOTAL, *MPI_EACH)),
        ),
        "processes",
    ),
}
"""Option of a launcher or srun → the number that it sets."""
_GPUS_OF_HOST = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_LAUNCHER_DOES = {
    *("num-machines", "machine-rank", "main-process-ip", "main-process-port", "role", "tee", "log-dir", "redirects"),
    *("rdzv-backend", "rdzv-conf", "rdzv-id", "rdzv-endpoint", "nnodes", "node-rank", "master-addr", "master-port"),
    *(
        "num-nodes",
        "local-ranks-filter",
        "ssh-port",
        "use-env",
        "same-network",
        "multi-gpu",
        "standalone",
        "monitor-interval",
        "local-addr",
    ),
}
_READ_WHOLE = re.compile(r"(?:IFS=\S* )?read (?:-r )?-r?d *(?:''|\"\") (?:-r )?(\w+)\b.*", re.DOTALL)
_SETS = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""The variables that an arithmetic expression sets."""
_EXPORTS_ALL = re.compile(r"set (?:(?!--)\S+ )*?([-+])(?:[b-zA-Z]*a\w*|[a-zA-Z]*o allexport)(?: |$)")
"""A command that begins or ends the export of every variable."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_READS = {"read": "adinNptu", "mapfile": "CcdnOsu", "readarray": "CcdnOsu"}
"""Command that reads input into variables → its options that take a value."""
_PLAIN_XARGS = re.compile(r"-[rtx]+|--no-run-if-empty|--verbose|--exit")
_LONGEST_XARGS = 100_000
"""Characters of the input that xargs turns into words."""
_SSH_VALUED = frozenset("-" + letter for letter in "BbcDEeFIiJLlmOoPpRSWw")
"""Options of ssh that take the next word as their value."""
_COST_OF_ALIASES = 64
"""Cost of a character of an alias, which is parsed at each use, in characters of an inserted value."""
_BY_LOOP = "the number of hosts in the `for`"
_DEVICE = re.compile(r"/dev/(?!shm/)")
_READS_ITS_SCRIPT = re.compile(r"(?:^|[\s/])(?:ba)?sh(?: -\w+)* *(?:-s )? *<<")
"""A shell that reads its script from standard input."""
_MOST_NESTED = 5
_EXPANDS = re.compile(r"[*?]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
"""A pattern of file names, or a list in braces."""
_FUNCTION_HEAD = re.compile(r"^(?:function\s+\S+\s+)?(?:[{!]\s+)+")
"""What may be before a command in its own source."""
_TEST = re.compile(r"\[ .* \]|\[\[ .* \]\]|(?:test|command -v|which|type|grep) .*", re.DOTALL)
"""A whole command that tests something."""
_USES = re.compile(r"\$\{?(\w+|[@*])")
"""The variables in shell text."""
_KINDS = ("module", "script")
"""Kinds of jobs that are certainly a training."""
_TRAINS = re.compile(r"train|fine_?tun", re.IGNORECASE)


class _Step(NamedTuple):
    """A command before the job that prepares it."""

    line: int
    source: str
    name: str = ""
    """The exported variable, if any; `source` is then its assignment."""
    value: str = ""
    ends: int | None = None
    """The number of possible jobs before the end of the function that it is local to; None if it is not local."""
    known: Variables | None = None
    """What was known about the variables that it uses; None for the end of the script."""
    unsets: int | None = None
    """If it removes `name` from the environment, the number of exports that it undoes."""
    asked: int = 0
    """The line of the condition under which it runs, or 0."""

    @property
    def exports(self) -> int:
        """By how much it changes the number of exports of `name`."""
        return 1 if self.unsets is None else -self.unsets


def take_export(line: int, value: str, draft: Translation) -> None:
    """Translate `--export=ALL,NAME=value` of sbatch and srun."""
    given = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
    for name, text in given.items():
        draft.variable(line, name, text)
    if len(given) < len(value.split(",")):
        draft.dropped(line, "export", "ranks get the login's environment")


def read(text: str, known: Mapping[str, str], draft: Translation) -> JobLine | None:
    """Translate the commands that prepare and start the job; return the one that starts it, or None.

    Args:
        known: Variables that Slurm sets, with their values.
    """
    body = _Body(known, draft)
    body.read(text, 0, JobLine())
    return body.finish()


class _Before(NamedTuple):
    """The state before a subshell: known variables, and the numbers of steps, jobs and notes."""

    mark: int
    exports_all: bool
    arguments: list[str] | None
    steps: int
    jobs: int
    notes: int


_IN_A_SHELL = "it applies only inside brackets or a pipe, where no job starts"


class _Folder(NamedTuple):
    """A `cd` that was translated."""

    note: int
    """Index of its note in the draft."""
    jobs: int
    """Number of possible jobs before it."""
    before: object
    """The previous folder, or None if unknown."""


@dataclass
class _Flow:
    """The control flow around a command."""

    chained: bool = False
    """Whether it follows `&&` or `||`."""
    piped: bool = False
    """Whether it reads from a pipe, and so runs in a subshell."""
    piped_from: int | None = None
    """The number of possible jobs before the plain commands that are piped into it; None if unknown."""
    begun: int = 0
    """The number of steps before the current list of commands that `&&` and `||` join."""
    tried: int = -1
    """The number of steps up to the one that is the command before `||`; -1 if that is not a step."""
    tested: str = ""
    """This command, if it is a test whose `&&` the next one follows, or ""."""
    condition: str = ""
    """The test that this command depends on, or ""."""
    outputs: list[tuple[int, int, int]] = field(default_factory=list)
    """For each output that is written to a file: the index of its note, and the range of possible jobs that print it.
    """
    folders: list[_Folder] = field(default_factory=list)
    braces: list[tuple[_Before, bool]] = field(default_factory=list)
    """For each open `{`: the state before it, and whether it reads from a pipe."""
    ended: int = 0
    """The line that ends the script or the shell being read; 0 if none does, negated once a note was written."""
    sourced: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of files that the script sources, which are not read."""
    pushed: list[object] = field(default_factory=list)
    """The folder stack of `pushd` and `popd`."""
    doubt: Unread | None = None
    """A command whose program is unknown: it may be the job."""

    def follow(self, command: SimpleCommand, steps: int) -> None:
        """Update `begun`, `tried`, `condition` and `tested` for a command after that many steps."""
        self.begun = self.begun if command.after else steps
        self.tried = self.tried if command.after == "||" else -1
        self.condition = self.tested if command.after == "&&" else ""
        alone = command.end == "&&" and not (command.after or command.inside)
        self.tested = command.source if alone and _TEST.fullmatch(command.source) else ""


class _Body:
    def __init__(self, known: Mapping[str, str], draft: Translation) -> None:
        self._draft = draft
        self._variables = Variables(dict(known))
        self._steps: list[_Step] = []
        self._assigned: list[tuple[int, str]] = []
        self._jobs: list[tuple[JobLine, int]] = []
        """Possible jobs, each with the number of steps before it."""
        self._open: list[str] = []
        self._block = (0, "", list[str]())
        """The current unevaluated block: its line, its first word, and the variables that it may set."""
        self._last = 0
        """The last line of the script."""
        self._files: dict[str, str] = {}
        """Name → text of the files that the script itself writes."""
        self._functions: dict[str, tuple[int, list[SimpleCommand]]] = {}
        """Name → the line of a function, and its commands."""
        self._called: dict[str, bool] = {}
        """Called function → whether it starts a job."""
        self._arguments: list[str] | None = None
        """Arguments of the current function; None if unknown."""
        self._input: str | None = None
        """Output of the previous command that is piped into this one; None if unknown."""
        self._printed: str | None = None
        """Output of this command that is piped into the next one; None if unknown."""
        self._asks = False
        """Whether an `&&` after this command makes the next one conditional."""
        self._asked = False
        """Whether this command runs only under a condition."""
        self._flow = _Flow()
        """The control flow around this command."""
        self._local: list[list[State]] = []
        """For each active function, the previous states of its local variables."""
        self._doubtful: dict[str, int] = {}
        """Name of a function that is defined inside a block → the line of the block."""
        self._aliases: dict[str, str] = {}
        self._integers: set[str] = set()
        """Variables declared as integers, for which `+=` adds numbers."""
        self._hosts: tuple[str, list[str]] | None = None
        """The variable of the current `for` and its words, if they are known host names."""

    def read(self, text: str, above: int, outer: JobLine, depth: int = 0) -> None:
        """Translate the commands of a script; if `above` is not 0, the script is inside a word of that line."""
        self._last = max(self._last, above or len(text.splitlines()))
        try:
            given = (replace(command, line=above) if above else command for command in commands(text))
            self._each(self._outside_functions(given), outer, depth)
        except UnreadScriptError as error:
            line, what = error.args
            self._draft.ambiguous(above or line, "…", what)

    def _each(self, given: Iterable[SimpleCommand], outer: JobLine, depth: int) -> None:
        """Translate commands; changes made in a subshell are undone after it."""
        kept: _Before | None = None
        for command in given:
            if command.inside and kept is None:
                kept = self._before()
            elif not command.inside and kept is not None:
                self._leave_shell(kept)
                kept = None
            self._command(command, outer, depth)
            self._flow.piped = command.end == "|"
        if kept is not None:
            self._leave_shell(kept)

    def _before(self) -> _Before:
        counts = (len(self._steps), len(self._jobs), len(self._draft.notes))
        return _Before(self._variables.mark(), self._variables.exports_all, self._arguments, *counts)

    def _leave_shell(self, before: _Before) -> None:
        """Undo the changes of a subshell; its preparation only applies to a job inside it."""
        self._variables.undo(before.mark)
        self._variables.exports_all = before.exports_all
        self._flow.ended = 0
        if self._arguments is not before.arguments:
            self._arguments = before.arguments
            self._variables.give(before.arguments)
        if len(self._jobs) > before.jobs:
            return
        folders = self._flow.folders
        while folders and folders[-1].note >= before.notes:
            self._undo_folder(folders.pop(), _IN_A_SHELL)
        for step in self._steps[before.steps :]:
            self._draft.dropped(step.line, shown(step.name or step.source), _IN_A_SHELL)
            if step.ends is None:
                self._variables.exported[step.name] -= step.exports
        del self._steps[before.steps :]

    def _leave_folders_after(self, place: int) -> None:
        """Undo every `cd` after the job with this index in `_jobs`."""
        while self._flow.folders and self._flow.folders[-1].jobs > place:
            self._undo_folder(self._flow.folders.pop(), "after the job")

    def _undo_folder(self, folder: _Folder, why: str) -> None:
        notes = self._draft.notes
        notes[folder.note] = notes[folder.note]._replace(fate="dropped", what=why)
        self._draft.job.pop("workdir", None)
        if folder.before is not None:
            self._draft.job["workdir"] = folder.before

    def _outside_functions(self, given: Iterator[SimpleCommand]) -> Iterator[SimpleCommand]:
        """Yield the commands outside functions; store those inside for the calls."""
        name, line, depth, body = "", 0, 0, list[SimpleCommand]()
        try:
            for command in given:
                sources = [word.source for word in command.words]
                if not depth:
                    brackets = command.end == "(" and sources[0] not in (*_OPENS, *_WITHIN)
                    begun = sources[1:2] if sources[0] == "function" else sources if brackets else []
                    if len(begun) == 1:
                        name, line = begun[0], command.line
                        sources = sources[2:]
                        if not sources:
                            continue
                    if not name or sources[0] != "{":
                        name = ""
                        yield command
                        continue
                opens = next((at for at, source in enumerate(sources) if source not in _WITHIN), len(sources))
                depth += sources[:opens].count("{") - (sources[0] == "}")
                if depth:
                    words = command.words[len(command.words) - len(sources) + (not body and sources[0] == "{") :]
                    body += [replace(command, words=words)] if words else []
                else:
                    self._functions[name] = line, body
                    self._doubtful.pop(name, None)
                    if self._open:
                        self._doubtful[name] = self._block[0]
                    name, body = "", []
        except UnreadScriptError:
            yield from body
            raise
        yield from body

    def _call(self, line: int, name: str, words: Sequence[Word], outer: JobLine, depth: int) -> None:
        """Read the commands of a function at its first call."""
        if name in self._called or depth >= _MOST_NESTED:
            if self._called.get(name):
                self._draft.ambiguous(line, shown(name), "another command: a profile starts one; dropped")
            else:
                self._draft.dropped(line, shown(name), "a function, read where it is first called")
            return
        self._called[name] = False
        if block := self._doubtful.get(name):
            what = f"read as line {self._functions[name][0]} defines it, in the block of line {block}"
            self._draft.ambiguous(line, shown(name), what)
        before, jobs, asked, chained = self._arguments, len(self._jobs), self._asked, self._flow.chained
        steps = len(self._steps)
        mark = self._variables.mark() if asked else 0
        self._local.append([])
        self._arguments = [field for word in words for field in self._variables.fields(word)]
        self._variables.give(self._arguments)
        self._each(self._functions[name][1], outer, depth + 1)
        own = self._local.pop()
        for state in reversed(own):
            self._variables.restore(state)
        local = {state.name for state in own}
        for at in range(steps, len(self._steps)):
            if self._steps[at].ends is None and self._steps[at].name in local:
                self._steps[at] = self._steps[at]._replace(ends=len(self._jobs))
                self._variables.exported[self._steps[at].name] -= self._steps[at].exports
        changed = dict.fromkeys(self._variables.undo(mark)) if asked else {}
        for each in changed.keys() - local:
            self._variables.forget(each, f"line {line} sets it under a condition")
        self._arguments = before
        self._variables.give(before)
        self._called[name] = len(self._jobs) > jobs
        if asked and not self._called[name]:
            self._steps[steps:] = [step._replace(asked=line) for step in self._steps[steps:]]
        if chained:
            self._flow.ended = 0

    def _command(self, command: SimpleCommand, outer: JobLine, depth: int) -> None:
        if self._flow.ended:
            self._skip(command)
            return
        self._input, self._printed = self._printed, None
        piped, self._flow.piped = self._flow.piped, False
        self._flow.piped_from = self._flow.piped_from if piped else None
        words = list(command.words)
        self._flow.chained = bool(command.after)
        self._asked = command.after == "||" or (command.after == "&&" and self._asks)
        tests = any(word.source in _TESTS or word.source.startswith("((") for word in words[:2])
        self._flow.follow(command, len(self._steps))
        self._asks = self._asked or command.end == ")" or tests
        self._begin_braces(command.line, words, piped=piped)
        if not words:
            return
        first = words[0].source
        if self._open and first == self._open[-1]:
            self._open.pop()
            if not self._open:
                self._end_block(command.line)
            return
        if first == "}":
            self._close_brace(own_shell=command.end in ("|", "&"))
            return
        if first in _OPENS:
            self._open_block(command, words, outer, depth)
        elif piped or command.end in ("|", "&"):
            kept = self._before()
            begun = self._flow.piped_from if piped else kept.jobs
            self._run(command, words, outer, depth)
            self._flow.piped_from = begun
            self._leave_shell(kept)
        else:
            self._run(command, words, outer, depth)
            certain = not (self._open or self._flow.braces or command.after or command.inside)
            if certain and (first == "exit" or (first == "exec" and len(words) > 1)):
                self._flow.ended = command.line

    def _open_block(self, command: SimpleCommand, words: Sequence[Word], outer: JobLine, depth: int) -> None:
        """Begin the block of `if`, `for` and the like, and translate what stands behind that word."""
        first = words[0].source
        counted = len(words) > 1 and words[1].source.startswith("((")
        names = self._sets(words[1:2]) if counted else [word.source for word in words[1:2]]
        self._begin_block(command.line, first, names, words[3:])
        if first in ("if", "while", "until"):
            before = len(self._jobs)
            self._command(replace(command, words=tuple(words[1 : 2 if counted else None])), outer, depth)
            # A condition may start ranks, but a plain program in it is only a test.
            self._jobs[before:] = [job for job in self._jobs[before:] if job[0].launcher or job[0].srun]
        if counted and words[2:]:  # bash needs no `;` after `))`
            self._command(replace(command, words=tuple(words[2:])), outer, depth)

    def _begin_braces(self, line: int, words: list[Word], *, piped: bool) -> None:
        """Remove leading keywords such as `then`, `do` and `{` from a command, and begin the block of each `{`."""
        while words and words[0].source in _WITHIN:
            if words.pop(0).source != "{":
                continue
            if self._asked or self._open[-1:] == ["}"]:
                self._begin_block(line, "{", ())
            else:
                self._flow.braces.append((self._before(), piped))

    def _skip(self, command: SimpleCommand) -> None:
        """Note once that commands after the end of the script are ignored."""
        if self._flow.ended > 0:
            what = f"line {self._flow.ended} ends the script: nothing is read from here on"
            self._draft.dropped(command.line, shown(command.words[0].source), what)
            self._flow.ended = -self._flow.ended

    def _close_brace(self, *, own_shell: bool) -> None:
        """Undo the changes of `{ …; }` if it runs in a subshell because of a pipe or `&`."""
        if not self._flow.braces:
            return
        before, piped = self._flow.braces.pop()
        self._flow.piped_from = before.jobs
        if own_shell or piped:
            self._leave_shell(before)
        else:
            self._variables.release(before.mark, ())

    def _run(self, command: SimpleCommand, words: list[Word], outer: JobLine, depth: int) -> None:
        """Translate a command that does not open or close a block: assignments, a builtin, a function or a program."""
        assignments = []
        while words and _ASSIGNMENT.match(words[0].source):
            assignments.append(words.pop(0))
        first = words[0].source if words else ""
        if not words:
            for word in assignments:
                (self._export if self._changes_environment(word) else self._assign)(command.line, word)
        elif first in ("export", "declare", "typeset", "readonly", "local"):
            self._declare(command.line, first, words[1:])
        elif first in self._functions:
            mark = self._variables.mark()
            names = [self._assign(command.line, word) for word in assignments]
            given = {name: self._variables.values[name] for name in names if name in self._variables.values}
            self._call(command.line, first, words[1:], replace(outer, assigned=outer.assigned | given), depth)
            self._variables.release(mark, names)
        elif first in self._aliases and depth < _MOST_NESTED:
            self._expand(command.line, first, [word.source for word in assignments], words[1:], outer, depth)
        elif first == "alias" and not self._open and not self._asked:
            for word in words[1:]:
                self._alias(command.line, word)
        else:
            for name in self._sets(words):
                self._forget(command.line, name)
            if first == "set" and (switch := _EXPORTS_ALL.match(" ".join(word.source for word in words))):
                self._variables.exports_all = switch[1] == "-"
            if first == "shift" or [word.source for word in words[:2]] == ["set", "--"]:
                self._set_arguments(words)
            self._program(command, words, outer, depth)

    def _expand(
        self, line: int, alias: str, before: list[str], words: Sequence[Word], outer: JobLine, depth: int
    ) -> None:
        """Read the text of an alias. The alias is not expanded inside its own text, as in bash."""
        text = self._aliases.pop(alias)
        if self._variables.has_room(len(text) * _COST_OF_ALIASES):
            self.read(" ".join((*before, text, *(word.source for word in words))), line, outer, depth + 1)
        else:
            self._draft.ambiguous(line, shown(alias), "an alias that is too long; dropped")
        self._aliases[alias] = text

    def _declare(self, line: int, first: str, words: Sequence[Word]) -> None:
        """Translate `export`, `local` and similar builtins with their names."""
        if first in ("local", "declare", "typeset") and self._local:
            names = (re.match(r"[A-Za-z_]\w*", word.source) for word in words)
            self._local[-1] += [self._variables.state(name[0]) for name in names if name]
        is_integer = any(re.match(r"-\w*i", word.source) for word in words)
        if any(re.fullmatch(r"-\w*f\w*", word.source) for word in words):
            self._draft.dropped(line, first, "functions are read where they are called")
            return
        options = [word.source for word in words if word.source[:1] in ("-", "+")]
        exports = first == "export" or any(re.match(r"-\w*x", option) for option in options)
        if any(re.match(r"-\w*n" if first == "export" else r"\+\w*x", option) for option in options):
            self._unset(line, first, words)
            return
        for word in map(_unquoted_name, words):
            self._integers.update(re.findall(r"^\w+", word.source) if is_integer else ())
            if word.source[:1] in ("-", "+"):
                continue
            if not re.match(r"[A-Za-z_]\w*(?:\+?=|$)", word.source):
                what = "its value is unknown; dropped: set it in job.env"
                self._draft.ambiguous(line, shown(f"{first} {word.source}"), what)
            elif exports or self._variables.exports(re.split(r"\+?=", word.source)[0]):
                self._export(line, word)
            elif "=" in word.source:
                self._assign(line, word)

    def _sets(self, words: Sequence[Word]) -> list[str]:
        """Return the variables that a command sets to unknown values."""
        first, rest = words[0].source, [word.source for word in words[1:]]
        if element := re.match(r"([A-Za-z_]\w*)\[[^\]]{0,200}\]\+?=", first):
            return [element[1]]
        if first.startswith("((") or first == "let":
            text = " ".join(piece.text for word in words for piece in word.pieces)
            return [one or other for one, other in _SETS.findall(text)]
        if first == "unset" and self._open:
            return [name for name in map(self._variables.text, words[1:]) if name.isidentifier()]
        if first == "printf" and rest[:1] == ["-v"]:
            return rest[1:2]
        if first == "getopts":
            return rest[1:2]
        found = list[str]()
        while first in _READS and rest:
            word = rest.pop(0)
            valued = word[:1] == "-" and word[-1] in _READS[first]
            found += [word] if word[:1] != "-" else rest[:1] if word.endswith("a") else []
            del rest[:valued]
        return [name for name in found if name.isidentifier()]

    def _forget(self, line: int, name: str) -> None:
        """Record that a command sets a variable to an unknown value."""
        if self._open:
            self._block[2].append(name)
        may_stay = bool(self._open) or self._asked
        self._variables.forget(name, f"line {line} sets it", may_stay=may_stay)
        self._export_unknown(line, name)

    def _set_arguments(self, words: Sequence[Word]) -> None:
        """Update the arguments for `shift` and `set -- WORDS`."""
        if self._open or self._asked or ("@" not in self._variables.arrays and words[0].source == "shift"):
            self._arguments = None
        elif words[0].source == "set":
            self._arguments = [field for word in words[2:] for field in self._variables.fields(word)]
        else:
            self._arguments = self._arguments[1:] if self._arguments and len(words) == 1 else None
        self._variables.give(self._arguments)

    def _begin_block(self, line: int, first: str, names: Sequence[str], words: Sequence[Word] = ()) -> None:
        if not self._open:
            self._block = (line, first, [])
        self._open.append(_OPENS[first])
        self._hosts = None
        for name in names if first in ("for", "select") else ():
            listed = [field for word in words for field in self._variables.fields(word)]
            known = listed and not any(flaw_of(one) or re.search(r"[][{}*?~]", one) for one in listed)
            self._hosts = (name, listed) if known and len({*listed}) == len(listed) else None
            self._variables.forget(name, f"the `{first}` of line {line} sets it", may_stay=False)
            self._block[2].extend([name] if self._variables.exports(name) else ())

    def _end_block(self, end: int) -> None:
        line, first, names = self._block
        for name in names:
            self._variables.forget(name, f"it depends on the `{first}` of line {line}")
            self._export_unknown(line, name)
        if self._draft.wanted_by == (line, _BY_LOOP):
            self._draft.ambiguous(
                line, first, f"lines {line} to {end}: only what ssh starts is read, the rest is dropped"
            )
            return
        may = f"; may set {', '.join(dict.fromkeys(names))}" if names else ""
        self._draft.ambiguous(line, first, f"lines {line} to {end} are not evaluated but dropped{may}")

    def _assign(self, line: int, word: Word) -> str:
        """Record `NAME=value` or `NAME+=value`; return the name."""
        name, right = _sides(word)
        if self._open:
            self._variables.forget(name, f"it is set in the block of line {self._block[0]}")
            self._block[2].append(name)
            return name
        if self._asked:
            self._variables.forget(name, f"line {line} sets it under a condition")
            return name
        if name in self._integers and word.source.startswith(f"{name}+="):
            self._forget(line, name)
            return name
        self._variables.assign(name, right)
        self._assigned.append((line, name))
        return name

    def _changes_environment(self, word: Word) -> bool:
        """Whether an assignment changes a variable of the environment: LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH."""
        name, right = _sides(word)
        known = self._variables
        is_list = any(piece.kind == "text" and ":" in piece.text for piece in right.pieces)
        extends = is_list and any(piece.kind == "name" and piece.text == name for piece in right.pieces)
        return known.exports(name) or (extends and not any(name in each for each in (known.values, known.why)))

    def _export(self, line: int, word: Word) -> None:
        name = self._assign(line, word) if "=" in word.source else word.source
        if not self._open:
            value, source = self._exported_value(name), as_written(word.source)
            self._steps.append(_Step(line, source, name, value, known=self._known(f"${name} {source}", value)))
            self._variables.exported[name] += 1

    def _exported_value(self, name: str) -> str:
        """Return the value of a variable, or a mark for it if it is unknown but has a default, or ""."""
        known = self._variables
        marked = known.text(Word(name, (Piece("name", name),))) if name in known.why and name in known.defaults else ""
        return known.values.get(name, marked)

    def _export_unknown(self, line: int, name: str) -> None:
        """Record that an exported variable is unknown from here on."""
        if self._variables.exported[name] and not self._open:
            value = self._exported_value(name)
            self._steps.append(_Step(line, name, name, value, known=self._known(f"${name}", value)))
            self._variables.exported[name] += 1

    def _known(self, source: str, value: str) -> Variables:
        """Return what is known now about the variables in a command and its value, directly or through others."""
        now = self._variables
        names = {*unknown_names(value), *_USES.findall(source)}
        more = names
        for _ in range(_MOST_NESTED):
            more = {each for name in more for each in _USES.findall(now.assigned.get(name, ""))} - names
            names |= more

        def only(known: Mapping[str, str]) -> dict[str, str]:
            return {name: known[name] for name in names if name in known}

        return replace(
            now, values=only(now.values), defaults=only(now.defaults), assigned=only(now.assigned), why=only(now.why)
        )

    def _unset(self, line: int, first: str, words: Sequence[Word]) -> None:
        """Translate `unset NAME` and `export -n NAME`, which remove a variable from the environment."""
        known = self._variables
        texts = [known.text(word) for word in words]
        own = (known.values, known.arrays, known.why)
        given = [
            name
            for name in texts
            if name.isidentifier() and (known.exported[name] or not any(name in each for each in own))
        ]
        names = [name for name in given if name not in OWN_VARIABLES and name != "CUDA_VISIBLE_DEVICES"]
        for name in sorted({*given} - {*names}):
            self._draft.dropped(line, f"{first} {name}", _BY_DISTTUI)
        for word, text in zip(words, texts, strict=True):
            if not re.fullmatch(r"[-+]\S*|[A-Za-z_]\w*", text):
                what = "only the shell knows what it removes; dropped"
                self._draft.ambiguous(line, shown(f"{first} {word.source}"), what)
        if "-f" in texts or not given:
            self._draft.dropped(line, first, "it removes what only the script has")
        elif self._asked and names:
            self._draft.ambiguous(line, f"{first} {' '.join(names)}", "it depends on the command before it; dropped")
        elif not self._open:
            self._steps += [_Step(line, f"unset {name}", name, unsets=known.exported.pop(name, 0)) for name in names]

    def _program(self, command: SimpleCommand, words: list[Word], outer: JobLine, depth: int) -> None:
        line, first, before = command.line, words[0].source, len(self._jobs)
        given = command.words[[word.source in _WITHIN for word in command.words].index(False) :]
        set_before, rest = self._set_before(given)
        expanded = (field for word in rest for field in self._variables.fields(word))
        words_of_it = (each for field in expanded for each in self._program_words(field))
        fields = self._without_prefix(line, [*set_before, *words_of_it])
        if command.text and _READS_ITS_SCRIPT.search(command.source):
            given = (*given, command.text)
            fields += ["-c", self._variables.text(command.text)]
        elif self._input and _READS_ITS_SCRIPT.search(f"{command.source} <<"):
            fields += ["-c", self._input]
        if command.end == "|":
            self._printed = self._prints(command, words[0].source, fields)
        if _base(fields[0] if fields else "") == "xargs":
            fields = self._with_words(fields)
        if self._starts_by_ssh(line, given, fields, outer, depth):
            return
        if job := command_of(fields, self._variables.values, outer):
            pieces = (piece for word in given for piece in word.pieces)
            job.repeated = bool(self._open) or command.end == "&"
            job.line, job.names = line, outer.names.union(piece.text for piece in pieces if piece.kind == "name")
            _put_into(job, outer)
            around = (*job.assigned.values(), *job.srun.values(), *job.options.values())
            job.variables = self._known("", " ".join((*fields, *around)))
            job.expanded = (*outer.expanded, *(word.source for word in rest if _expands(word)))
            if depth < _MOST_NESTED and (text := self._written(job)):
                self.read(text, line, job, depth + 1)
                self._flow.ended = 0
                if len(self._jobs) > before:
                    return
            if job.kind != "shell":
                self._jobs.append((job, len(self._steps)))
            elif depth < _MOST_NESTED and not (first == "eval" and _HOOK.search(command.source[:60])):
                self._read_shell(job, depth)
                self._flow.ended = self._flow.ended if first == "eval" else 0
                if len(self._jobs) == before and job.srun and only_unknown(job.value):
                    self._jobs.append((replace(job, kind="unread", value=" ".join(fields)), len(self._steps)))
            self._note_output(command, before)
        if not self._open and len(self._jobs) == before:
            self._prepares(command, words, fields)

    def _read_shell(self, job: JobLine, depth: int) -> None:
        """Read the script of a shell, which knows the variables assigned before it."""
        mark = self._variables.mark()
        for name, value in job.assigned.items():
            written = as_written(re.sub(r'(["\\$`])', r"\\\1", value))
            self._variables.assign(name, Word(f'"{written}"', (Piece("text", value, quoted=True),)))
        self.read(job.value, job.line, job, depth + 1)
        self._variables.release(mark, [*job.assigned])

    def _set_before(self, given: Sequence[Word]) -> tuple[list[str], Sequence[Word]]:
        """Return the values of the assignments before a command, each of which uses those before it, and the rest."""
        at = next((at for at, word in enumerate(given) if not _ASSIGNMENT.match(word.source)), len(given))
        mark, known = self._variables.mark(), self._variables
        names, found = list[str](), list[str]()
        for word in given[:at]:
            name, right = _sides(word)
            found.append(f"{name}={known.text(right)}")
            names.append(name)
            known.assign(name, right)
        known.release(mark, names)
        return found, given[at:]

    def _note_output(self, command: SimpleCommand, before: int) -> None:
        """Note the file to which a command redirects its output, if it added a job to those before."""
        if len(self._jobs) == before or not command.writes:
            return
        if not _DEVICE.match(name := self._variables.text(command.writes)):
            self._flow.outputs.append((len(self._draft.notes), before, len(self._jobs)))
            self._draft.dropped(command.line, shown(f"> {as_written(name)}"), _OF_THE_SCRIPT["tee"])

    def _without_prefix(self, line: int, fields: list[str]) -> list[str]:
        """Drop a first word whose value is unknown, as in `$PROFILE python a.py`."""
        name = only_unknown(fields[0]) if len(fields) > 1 else ""
        if not name.isidentifier():
            return fields
        free = name not in self._variables.why and name not in self._variables.defaults
        rest = self._without_prefix(line, fields[1:])
        # A launcher's options set the number of ranks regardless of what comes before it.
        counts = _PROGRAMS.get(_base(rest[0])) not in (None, "mpirun")
        if not (free or counts) or not _starts(rest, 0) or rest[0].endswith(".py"):
            return fields
        why = self._variables.why.get(name, "the script does not set it")
        self._draft.ambiguous(line, f"${name}", f"comes before the job's command, and {why}; dropped")
        return rest

    def _program_words(self, field: str) -> list[str]:
        """Return the words of a program's default, as in `${PYTHON:-python}`; other fields are unchanged."""
        words = self._variables.defaults.get(only_unknown(field), "").split()
        return words if words and not words[0].endswith(".py") and _starts(words, 0) else [field]

    def _with_words(self, fields: list[str]) -> list[str]:
        """Return the command that `| xargs` starts, with its input as words; unchanged if the input is unknown."""
        at = next((at for at, word in enumerate(fields) if at and not _PLAIN_XARGS.fullmatch(word)), len(fields))
        text = self._input
        if (
            text is None
            or at == len(fields)
            or fields[at].startswith("-")
            or len(text) > _LONGEST_XARGS
            or re.search(r"['\"\\]", text)
        ):
            return fields
        return [*fields[at:], *text.split()]

    def _starts_by_ssh(self, line: int, given: Sequence[Word], fields: list[str], outer: JobLine, depth: int) -> bool:
        """Translate `ssh $HOST COMMAND` in a `for` over hosts; return whether it starts a job."""
        at = 1
        while at < len(fields) and fields[at].startswith("-"):
            at += 2 if fields[at] in _SSH_VALUED else 1
        if not fields or _base(fields[0]) != "ssh" or at + 1 >= len(fields) or depth >= _MOST_NESTED:
            return False
        user, _, host = fields[at].rpartition("@")
        name, names = self._hosts or ("", [])
        if self._open != ["done"] or only_unknown(host) != name or self._draft.login:
            return False
        opened, self._open, before = self._open, [], len(self._jobs)
        self.read(" ".join(fields[at + 1 :]), line, outer, depth + 1)
        self._open, self._flow.ended = opened, 0
        if len(self._jobs) == before:
            return False
        self._draft.hosts = [Machine(f"{user}@{one}" if user else one) for one in names]
        self._draft.wanted, self._draft.wanted_by = len(names), (self._block[0], _BY_LOOP)
        if at > 1:
            what = f"{shown(' '.join(fields[1:at]))}: dropped: write it into ~/.ssh/config, or as user@host:port"
            self._draft.ambiguous(line, "ssh", what)
        self._draft.translated(line, "ssh", f"started on each of {', '.join(names)} → hosts")
        return True

    def _written(self, job: JobLine) -> str:
        """Return the text of the script that a job starts if this script has written it, or ""."""
        words = [word for word in job.value.split(" ") if not word.startswith("-")]
        if job.kind != "unread" or job.why or not words:
            return ""
        at = 1 if _base(words[0]) in _SHELLS and len(words) > 1 else 0
        return self._files.get(words[at].removeprefix("./"), "")

    def _writes(self, command: SimpleCommand, words: list[Word], fields: list[str]) -> bool:
        """Store what a command writes to a file; return False if it writes no file, or unknown text."""
        first, target = words[0].source, command.writes
        if first == "tee" and len(words) > 1:
            target = words[-1]
        if target is None or _DEVICE.match(name := self._variables.text(target).removeprefix("./")):
            return False
        text = self._prints(command, first, fields)
        before = self._files.pop(name, "")
        of_no_job = first == "tee" and self._flow.piped_from == len(self._jobs)
        if (text is None and not of_no_job) or self._open:
            return False
        if text is not None:
            self._files[name] = f"{before}\n{text}" if command.appends else text
        what = "only this script writes it: if the job reads it, create it before the run"
        self._draft.ambiguous(command.line, first, f"{shown(self._variables.shown(name))}: {what}")
        return True

    def _prints(self, command: SimpleCommand, first: str, fields: list[str]) -> str | None:
        """Return what a command prints, or None if unknown."""
        if first == "tee" or (first == "cat" and len(fields) == 1):
            return self._variables.text(command.text) if command.text else self._input
        if first == "printf" and len(fields) > 1:
            return formatted(fields[1], fields[2:])
        if first == "echo" and len(fields) > 1:
            if fields[1] == "-e":
                printed = formatted(" ".join(fields[2:]).replace("%", "%%"), ())
                return None if printed is None else f"{printed}\n"
            if fields[1][:1] != "-" and "\\" not in command.source:
                return " ".join(fields[1:])
        return None

    def _prepares(self, command: SimpleCommand, words: list[Word], fields: list[str]) -> None:
        """Translate a command that does not start a job."""
        line, first = command.line, words[0].source
        if command.text and (stored := _READ_WHOLE.fullmatch(command.source)):
            source = f"{stored[1]}={command.text.source}"
            self._assign(line, Word(source, (Piece("text", f"{stored[1]}="), *command.text.pieces)))
        elif self._writes(command, words, fields):
            return
        elif (
            first in ("source", ".") and len(fields) > 1 and (text := self._files.pop(fields[1].removeprefix("./"), ""))
        ):
            self.read(text, line, JobLine(), 1)
        elif first in _SETUP or (first == "eval" and _HOOK.search(command.source)):
            self._prepare(command)
            if first in ("source", ".") and len(fields) > 1 and not _PREPARED.search(fields[1]):
                self._flow.sourced.append((line, fields[1]))
        elif first in ("cd", "pushd", "popd"):
            self._folder(line, fields)
        elif why := self._of_the_script(command, what := first if first[:2] != "((" else "(("):
            self._draft.dropped(line, shown(what), why)
        elif first == "unset":
            self._unset(line, first, words[1:])
            for name in filter(str.isidentifier, map(self._variables.text, words[1:])):
                why = f"line {line} unsets it under a condition" if self._asked else "unset"
                self._variables.forget(name, why, may_stay=self._asked, is_set=self._asked)
        else:
            self._draft.ambiguous(line, shown(first), "not understood; dropped")
            if _base(first) not in _PREPARES and not self._open:
                self._draft.unread = Unread(line, shown(self._variables.shown(" ".join(fields))))
                self._flow.doubt = self._draft.unread if fields and only_unknown(fields[0]) else self._flow.doubt

    def _of_the_script(self, command: SimpleCommand, first: str) -> str:
        """Return why a command that is only for the script is dropped, or "" if it is another."""
        if first in ("true", ":", "echo") and command.after == "||" and self._flow.tried == len(self._steps):
            self._prepare(command)
            return "`activate` continues if the command before it fails"
        if first == "tee":
            self._flow.outputs.append((len(self._draft.notes), self._flow.piped_from or 0, len(self._jobs)))
        return _OF_THE_SCRIPT.get(first, "it is the condition of the next command" if self._flow.tested else "")

    def _prepare(self, command: SimpleCommand) -> None:
        """Add a command to those of `activate`, as the alternative or with the condition before it, if it has one."""
        flow, asked, source = self._flow, 0, _FUNCTION_HEAD.sub("", as_written(command.source))
        if self._variables.exports_all and source.startswith(("source ", ". ")):
            source = f"{{ set -a; {source}; set +a; }}"
        if command.after == "||" and flow.tried == len(self._steps):
            at = flow.begun + max((n for n, step in enumerate(self._steps[flow.begun :], 1) if step.name), default=0)
            source = f"{{ {' && '.join(step.source for step in self._steps[at:])} || {source}; }}"
            del self._steps[at:]
        elif flow.condition:
            source = (
                f"{flow.condition} && {source}" if command.end == "||" else f"{{ ! {flow.condition} || {source}; }}"
            )
        elif self._asked:
            asked = command.line
        self._steps.append(_Step(command.line, source, known=self._known(source, ""), asked=asked))
        if command.end == "||":
            flow.tried = len(self._steps)

    def _alias(self, line: int, word: Word) -> None:
        """Store `alias NAME=TEXT` for its uses."""
        name, _, text = self._variables.text(word).partition("=")
        self._draft.dropped(line, shown(f"alias {name}"), "inserted where it is used")
        self._aliases[name] = text

    def _folder(self, line: int, fields: list[str]) -> None:
        """Set the job's folder by `cd`, `pushd` or `popd`."""
        draft, flow = self._draft, self._flow
        first, *given = fields or ["cd"]
        where = at_home(given[-1]) if given else "~" if first == "cd" else ""
        before, notes = draft.job.get("workdir"), len(draft.notes)
        usual, written = self._variables.settled(where), self._variables.shown(where)
        goes_back = flow.pushed if first == "popd" else [one.before for one in flow.folders if where == "-"]
        if first == "pushd":
            flow.pushed.append(before)
        if goes_back:
            usual = written = str(goes_back.pop() or "")
        elif before and where and where[0] not in "/~-+" and not unknown_names(where):
            joined = f"{before}/{written}"
            usual = written = joined if "${var:" in joined else posixpath.normpath(joined)
        known = usual.startswith(("/", "~", "${var:")) and not unknown_names(usual)
        draft.job.pop("workdir", None)  # the old folder is wrong even if the new one is unknown
        if known:
            draft.job["workdir"] = written
            note = draft.ambiguous if self._asked else draft.translated
            note(line, first, f"{shown(written)} → job.workdir{', whatever the condition before it' * self._asked}")
            self._name_unknown(line, unknown_names(where), ())
        elif goes_back or written:
            draft.ambiguous(line, first, f"{shown(written)}: set job.workdir to the folder")
        else:
            draft.dropped(line, first, "back to the folder where the script is started")
        if (known or before is not None) and len(draft.notes) > notes:
            flow.folders.append(_Folder(notes, len(self._jobs), before))

    def finish(self) -> JobLine | None:
        """Choose the job, and translate it and the steps before it; return it, or None if none was understood."""
        if self._open:
            self._end_block(self._last)
        self._take_uncalled()
        best, place, job = len(self._steps), len(self._jobs), None
        if self._jobs:
            # Prefer commands that start ranks to those that may only prepare, such as python prepare.py.
            job, best = max(
                self._jobs,
                key=lambda each: (
                    bool(each[0].launcher),
                    bool(each[0].why),
                    bool(each[0].srun),
                    each[0].srun.get("-n", each[0].srun.get("--ntasks")) != "1",  # one task only prepares the nodes
                    each[0].kind in _KINDS,
                    not each[0].why and bool(_TRAINS.search(each[0].value)),
                ),
            )
            place = next(at for at, (each, _) in enumerate(self._jobs) if each is job)
            self._leave_folders_after(place)
            for other, _ in self._jobs:
                if other is not job:
                    what = "another command: a profile starts one; dropped"
                    self._draft.ambiguous(other.line, shown(self._variables.shown(other.value)), what)
            if self._flow.doubt and not (job.launcher or job.srun or job.kind == "unread"):
                self._draft.unread, job = self._flow.doubt, None
            elif job.kind == "unread":
                names = self._variables
                words, cure = shown(names.shown(job.value)), names.shown(job.cure)
                self._draft.unread = Unread(job.line, f"{words}: {job.why}" if job.why else words, cure)
                job = None
            else:
                for word in job.expanded:
                    self._draft.ambiguous(job.line, shown(word), "not expanded: write its words into job.args")
                last, self._variables = self._variables, job.variables or self._variables
                job, self._variables = self._job(job), last
        self._note_outputs(job, place)
        used = self._used(job.names if job else ())
        exported = self._used(step.name for step in self._steps)
        used_here = used | self._used(name for step in self._steps for name in (step.name, *_USES.findall(step.source)))
        noted = {(step.line, step.name) for step in self._steps}
        for line, name in self._assigned:
            if (line, name) in noted:
                continue
            why = "inserted where it is used" if name in used_here else "nothing that is kept uses it"
            self._draft.dropped(line, name, self._variables.why.get(name, why) if name in used | exported else why)
        self._doubt_sourced(used)
        self._finish_steps(best if job else None, place, used, job)
        return job

    def _note_outputs(self, job: JobLine | None, place: int) -> None:
        """Correct the notes on files with the output of other commands than the job."""
        notes = self._draft.notes
        for at, first, end in self._flow.outputs:
            its_own = job is None or first <= place < end
            if not its_own and at < len(notes) and notes[at].what == _OF_THE_SCRIPT["tee"]:
                notes[at] = notes[at]._replace(what="it is not the output of the job")

    def _finish_steps(self, best: int | None, place: int, used: set[str], job: JobLine | None) -> None:
        """Translate the steps before the job to its environment and `activate`; `best` is their number if known."""
        setup, last = list[str](), self._variables
        counted = [step for step in self._steps[:best] if step.ends is None or step.ends > place]
        by_job = {*job.assigned, *re.findall(r"(?:^|,)(\w+)=", job.srun.get("--export", ""))} if job else set[str]()
        final = {step.name: step for step in counted if step.name and not step.asked}
        for at, step in enumerate(self._steps):
            self._variables, after = step.known or last, final.get(step.name, step)
            ended = step.ends is not None and step.ends <= place
            if ended or (best is not None and at >= best):
                why = "it is local to a function" if ended else "after the job"
                self._draft.dropped(step.line, shown(step.name or step.source), why)
            elif (
                after is not step
                and not step.asked
                and (not unknown_names(after.value) or only_unknown(after.value) == step.name)
            ):
                self._draft.dropped(step.line, shown(step.name), f"line {after.line} sets or unsets it again")
            elif step.asked:
                what = f"runs only if the condition on line {step.asked} is true; dropped"
                self._draft.ambiguous(step.line, shown(step.name or step.source), what)
            elif step.name in by_job:
                self._draft.dropped(step.line, shown(step.name), f"line {job.line if job else 0} sets it for the job")
            elif step.name and step.unsets is None:
                setup += self._environment(step, used, job, is_final=after is step)
            elif kept := self._kept(step.line, step.source):
                setup += kept
                self._draft.translated(step.line, shown(step.source), "→ activate")
        self._variables = last
        self._draft.activate = " && ".join(one for at, one in enumerate(setup) if [one] != setup[at - 1 : at])

    def _doubt_sourced(self, used: set[str]) -> None:
        """Note values of the job that a sourced file may have changed."""
        if not self._flow.sourced:
            return
        line, name = self._flow.sourced[-1]
        given = [*self._assigned, *((step.line, step.name) for step in self._steps if step.name)]
        later = {each for at, each in given if at > line}
        if changed := sorted(used.intersection(each for at, each in given if at < line) - later):
            what = f"not read: if it sets {', '.join(changed)}, write that value into the profile"
            self._draft.ambiguous(line, shown(f"source {self._variables.shown(name)}"), what)

    def _take_uncalled(self) -> None:
        """Read uncalled functions until one contains a job; note the others as dropped."""
        for name, (line, body) in self._functions.items():
            if name not in self._called and not self._jobs:
                self._call(line, name, (), JobLine(), 0)
            elif name not in self._called and body:
                self._draft.ambiguous(line, shown(name), "an uncalled function; dropped")

    def _used(self, names: Iterable[str]) -> set[str]:
        """Return names, and those whose values are in their values, directly or through other variables."""
        found = set(names)
        while more := {part for name in found for part in self._variables.parts.get(name, ())} - found:
            found |= more
        return found

    def _environment(self, step: _Step, used: set[str], job: JobLine | None, *, is_final: bool) -> list[str]:
        """Translate an export; return the commands that `activate` needs for it, or for a later one that adds to it."""
        draft, line, name, unknown = self._draft, step.line, step.name, unknown_names(step.value)
        if name in (*OWN_VARIABLES, "NODE_RANK"):
            draft.dropped(line, name, _BY_DISTTUI)
        elif name in used and (len(step.value.split()) > 1 or not draft.variables.keys().isdisjoint(unknown)):
            draft.translated(line, name, f"words of the command in line {job.line if job else 0}")
        elif (is_final and not unknown) and (step.value or (name in self._variables.values and "=" in step.source)):
            draft.variable(line, name, self._variables.shown(step.value))
        elif step.value and not self._computed(step.value):
            if kept := self._kept(line, f"export {step.source}", (name,)):
                draft.translated(line, name, f"{shown(step.source)} → activate")
                return kept
        elif step.value and not any(re.fullmatch(r"VALUE\d*", each) for each in unknown):
            self._name_unknown(line, unknown, ())
            draft.variable(line, name, self._variables.shown(step.value))
        else:
            why = self._variables.why.get(name, "it is computed when the job starts" if step.value else "it is empty")
            draft.ambiguous(line, name, f"{why}; dropped: set its value in job.env")
        return []

    def _computed(self, value: str) -> bool:
        """Whether a value contains unknown names that do not come from the environment."""
        known = (self._variables.why, self._variables.defaults)
        return any(name in each for name in unknown_names(value) for each in known)

    def _kept(self, line: int, source: str, seen: tuple[str, ...] = ()) -> list[str]:
        """Return a line for `activate` after the assignments that it needs; [] and a note if it cannot be kept."""
        before, variables = list[str](), self._variables
        if self._draft.container:
            self._draft.ambiguous(line, shown(source), "the container's image has it; dropped")
            return []
        for name in dict.fromkeys(_USES.findall(source)):
            if name in seen:
                continue
            value, written = variables.values.get(name), variables.assigned.get(name)
            if value is not None and not unknown_names(value):
                before.append(f"{name}={quote(value)}")
            elif (default := variables.defaults.get(name)) is not None and name not in variables.why:
                before.append(f"{name}=${{{name}:-{quote(default)}}}")
            elif written and len(seen) < _MOST_NESTED:
                if not (needed := self._kept(line, written, (*seen, name))):
                    return []
                before += needed
            elif name in variables.why or not name.isidentifier() or name.startswith("SLURM"):
                why = variables.why.get(name, "the script or Slurm sets it")
                self._draft.ambiguous(line, shown(source), f"${name} is unknown ({why}); dropped")
                return []
        return [*dict.fromkeys(before), source]

    def _job(self, job: JobLine) -> JobLine:
        """Translate the job's command; return it with references to profile variables for unknown names."""
        draft, line, values = self._draft, job.line, self._variables
        args = tuple(word for word in job.args if only_unknown(word) != "@")
        if len(args) < len(job.args):
            draft.ambiguous(line, '"$@"', "arguments of sbatch are unknown: add yours to job.args")
        given = [value for name, value in job.options.items() if self._becomes_variable(job.launcher, name)]
        named = only_unknown(job.value) != "@"
        assigned = [value for name, value in job.assigned.items() if not is_set_by_disttui(name)]
        kept = (job.value if named else "", *args, *assigned, *map(values.settled, given))
        self._name_unknown(line, [name for word in kept for name in unknown_names(word)], args)
        made = replace(
            job,
            value=values.shown(job.value),
            args=tuple(map(values.shown, args)),
            options={name: values.shown(self._counted(name, value)) for name, value in job.options.items()},
            srun={name: values.shown(values.settled(value)) for name, value in job.srun.items()},
            unsure=frozenset(self._doubt_counts(job)),
        )
        if named:
            draft.translated(line, "srun" if job.srun else "command", f"{shown(made.value)} → job.{made.kind}")
        else:
            draft.unread = Unread(line, '"$@"')
        for name, value in job.assigned.items():
            draft.variable(line, name, values.shown(value))
        for name, value in made.srun.items():
            self._srun_option(line, name, value)
        for words in job.around:
            self._around(line, words)
        if made.launcher in ("accelerate", "deepspeed", "mpirun"):
            draft.launch["launcher"] = made.launcher
            draft.translated(line, made.launcher, f"→ launch.launcher: {made.launcher}")
        for name, value in made.options.items():
            self._option(line, made.launcher, name, value)
        if made.kind == "command" and named:
            draft.job["command"] = [made.value, *made.args]
            if not made.launcher:
                what = f"{shown(made.value)} is started once per rank; if it starts ranks itself, name its script"
                draft.ambiguous(line, "job.command", what)
        else:
            draft.job |= {made.kind: made.value} if named else {}
            draft.job |= {"args": list(made.args)} if made.args else {}
            if option := re.search(r"(?:^| )(--?\S*launcher\S*[ =]slurm)(?= |$)", " ".join(made.args)):
                what = f"{option[1]}: the script reads Slurm's variables, which disttui does not set: use pytorch"
                draft.ambiguous(line, "job.args", what)
            self._take_python(line, made)
        return made

    def _doubt_counts(self, job: JobLine) -> Iterator[str]:
        """Yield the options that the script may set to another value than the one used; note those that are counts."""
        values = self._variables
        mpirun = job.launcher == "mpirun"
        options = [(f"mpirun {name.lstrip('-')}" if mpirun else name, value) for name, value in job.options.items()]
        for name, value in (*options, *job.srun.items()):
            for unknown in unknown_names(value):
                usual = values.defaults.get(unknown)
                why = values.why.get(unknown, "")
                if usual is not None and unknown in values.in_doubt and why != COUNTS_GPUS:
                    yield name
                    if number := _COUNTS.get(name):
                        what = f"${unknown}: {why} → {shown(usual)}"
                        self._draft.guess(number, job.line, name.lstrip("-"), what)

    def _counted(self, name: str, value: str) -> str:
        """Return the value of a launcher's option; `gpu` if it counts the GPUs of the host."""
        settled = self._variables.settled(value)
        counts = only_unknown(settled) in _GPUS_OF_HOST or self._variables.why.get(only_unknown(value)) == COUNTS_GPUS
        return "gpu" if counts and name in _COUNTED_OPTIONS else settled

    def _take_python(self, line: int, job: JobLine) -> None:
        """Translate the interpreter, or note it if its path is unknown."""
        python, launcher = at_home(job.python), at_home(job.program)
        if python.startswith(("/", "~/")) and not unknown_names(python):
            self._draft.python = python
        elif python not in ("", "python", "python3"):
            what = f"{shown(self._variables.shown(python))}: set python to the whole path"
            self._draft.ambiguous(line, "python", what)
        elif launcher and not python:
            launcher = self._variables.shown(launcher)
            beside = shown(f"{launcher.rpartition('/')[0]}/python")
            what = f"{shown(launcher)}: set python to its interpreter, like {beside}"
            self._draft.ambiguous(line, "python", what)

    def _srun_option(self, line: int, name: str, value: str) -> None:
        draft = self._draft
        if name == "--export":
            take_export(line, value, draft)
        elif name.startswith("--container-image"):
            what = f"{shown(value)}: set container: {{runtime: enroot, image: {shown(value)}}} if the hosts have it"
            draft.ambiguous(line, f"srun {name}", what)
        elif name == "--container-mounts":
            draft.ambiguous(line, f"srun {name}", f"{shown(value)}: set container.mounts")
        elif name in ("-w", "--nodelist"):
            draft.ambiguous(line, f"srun {name}", f"{shown(value)} names hosts: add --host")
        elif name not in ("", "-N", "-n", "--nodes", "--ntasks", "--ntasks-per-node") and not (
            draft.login and name in ("--gpus-per-node", "--gres")
        ):
            draft.dropped(line, f"srun {shown(name)}", "disttui starts the ranks")

    def _around(self, line: int, words: tuple[str, ...]) -> None:
        """Translate a program around the job: a container, an environment or a binding."""
        draft, base = self._draft, _base(words[0])
        label = shown(as_written(base))
        if runtime := _CONTAINERS.get(base):
            image = words[-1]
            if image.startswith("-") or unknown_names(image) or len(words) < 3:
                draft.ambiguous(line, label, "its image is unknown: set container: {runtime, image}")
                return
            draft.container = {"image": image, "runtime": runtime}
            what = f"{shown(image)} → container; its other options are dropped: container.mounts, container.options"
            draft.ambiguous(line, label, what)
        elif base in _ENVIRONMENTS:
            what = f"{shown(as_written(' '.join(words)))}: its environment is dropped: set activate or python"
            draft.ambiguous(line, label, what)
        else:
            what = f"{shown(as_written(' '.join(words)))} comes before the job's command; dropped"
            draft.ambiguous(line, label, what)

    def _name_unknown(self, line: int, uses: list[str], args: tuple[str, ...]) -> None:
        """Note the variables that the user must set; a default that is not exactly one word becomes a list."""
        values = self._variables
        words = {only_unknown(word) for word in args} & values.divided
        for name in sorted(set(uses)):
            why, default = values.why.get(name, "the script does not set it"), values.defaults.get(name)
            what = f"{why}: use --set var.{variable_name(name)}=…"
            what += "" if default is None else f", else it is {shown(default)}"
            if name in words and uses.count(name) == 1:
                what += "; a list gives several words"
                if default is not None and len(default.split()) != 1:
                    self._draft.variables[name] = values.defaults.pop(name).split()
            self._draft.ambiguous(line, f"${name}", what)

    @staticmethod
    def _becomes_variable(launcher: str, option: str) -> str | None:
        """Return the variable through which Accelerate passes a launcher option to the script, or None."""
        key = option.lstrip("-").replace("-", "_")
        return from_accelerate.variable_of(key) if launcher == "accelerate" else None

    def _option(self, line: int, launcher: str, name: str, value: str) -> None:
        """Translate an option of the launcher."""
        draft, plain = self._draft, name.lstrip("-")
        label = f"{launcher} {shown(name)}"
        variable = self._becomes_variable(launcher, name)
        if plain in ("nproc-per-node", "num-processes", "no-python", "num-gpus", *MPI_TOTAL, *MPI_EACH) or (
            launcher == "mpirun" and plain in ("H", "host", "hosts")
        ):
            return
        if what := _TO_DECIDE.get(plain):
            draft.ambiguous(line, label.replace(" --pass-local-rank", ""), what)
        elif plain == "max-restarts" and value.isascii() and value.isdigit() and int(value[:6]) <= 1000:
            draft.launch["restarts"] = int(value[:6])
            draft.translated(line, label, f"→ launch.restarts: {value}")
        elif plain in _LAUNCHER_DOES:
            draft.dropped(line, label, _BY_DISTTUI)
        elif plain == "config-file" and launcher == "accelerate":
            what = f"{shown(value)} is not read: import it by disttui profile import, and copy its job.env"
            draft.ambiguous(line, label, what)
        elif plain in ("hostfile", "H", "host", "machinefile", "f", "include", "i") and launcher in (
            "deepspeed",
            "mpirun",
            "torchrun",  # from `colossalai run`
        ):
            draft.ambiguous(line, label, f"{shown(value)} names hosts: add --host, or import a hostfile")
        elif plain == "cpu" and launcher == "accelerate":
            draft.launch["backend"] = "gloo"
            draft.translated(line, label, "→ launch.backend: gloo")
        elif variable:
            draft.env[variable] = value or "true"
            draft.translated(line, label, f"→ job.env: {variable}")
        elif only_unknown(name) or unknown_names(name):
            what = f"options of {launcher} that only the shell knows; dropped"
            draft.ambiguous(line, shown(self._variables.shown(name)), what)
        elif launcher == "torchrun":
            draft.dropped(line, label, _BY_DISTTUI)
        elif launcher == "mpirun" and (name in _MPIRUN_FLAGS or name.startswith("-x ")):
            why = "each host's own value is used; set another in job.env"
            draft.dropped(line, label, why if name.startswith("-x ") else "disttui starts the ranks")
        else:
            draft.ambiguous(line, label, "unknown; dropped")
