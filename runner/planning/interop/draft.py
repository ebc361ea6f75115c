"""The draft that an importer fills from a foreign file, and the profile made from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.hosts.discovery import flaw_of
from disttui.runner.profile.fields import MOST_PROCESSES, OWN_VARIABLES, slug
from disttui.runner.profile.leaks import in_data
from disttui.runner.profile.load import parse
from disttui.runner.profile.nodes import MAX_NODES
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem
from disttui.runner.profile.save import render
from disttui.runner.profile.schema import MOST_HOSTS
from disttui.runner.text import clean

Fate = Literal["translated", "dropped", "ambiguous"]
SCRIPT = "train.py"
"""Placeholder for a script that a file does not name."""
_MOST_NOTES = 1000
"""Limit of notes on lines that were not translated: no user would read more."""


class LineNote(NamedTuple):
    """What became of one line of a file; line 0 is for what the file lacks."""

    line: int
    key: str
    fate: Fate
    what: str


class Machine(NamedTuple):
    """One host, as written in the profile; if `num_processes` is None, it gets one per GPU or core."""

    host: str
    num_processes: int | None = None
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Imported:
    """A profile as text, and what became of every line."""

    text: str
    notes: tuple[LineNote, ...]
    missing: InputError | None
    """Set if the file does not name all hosts: placeholders replace them, and the profile cannot be used yet."""
    guess: DisttuiError | None = None
    """Set if the file does not determine the number of hosts or processes, so that the profile's may be wrong."""


class Unread(NamedTuple):
    """A command that may start the job, but is not understood."""

    line: int = 0
    words: str = ""
    """The command, followed by the reason if `cure` is set."""
    cure: str = ""
    """What to write instead."""


def is_set_by_disttui(name: str) -> bool:
    """Whether a variable of the job is dropped."""
    return name in (*OWN_VARIABLES, "CUDA_VISIBLE_DEVICES") or name.startswith("TORCHELASTIC_")


@dataclass
class Translation:
    """A profile that is being built from the file `source`."""

    source: str
    notes: list[LineNote] = field(default_factory=list)
    unsaid: int = 0
    """Number of notes beyond the limit, which are not in `notes`."""
    guessed: dict[Literal["hosts", "processes"], int] = field(default_factory=dict)
    """The numbers that the file does not determine, each with the line that needs it."""
    problems: list[ProfileProblem] = field(default_factory=list)
    name: str = ""
    hosts: list[Machine] = field(default_factory=list)
    """Hosts that the file names."""
    listed: bool = False
    """Whether the file lists all hosts, so that --host is not allowed."""
    wanted: int = 0
    """Number of hosts that the file requires; 0 if unknown."""
    wanted_by: tuple[int, str] = (0, "hosts")
    """Line and key that set `wanted`."""
    num_processes: int | None = None
    """Processes per host, for hosts without a number of their own."""
    gpus: tuple[int, ...] | None = None
    """GPU indices, if there is exactly one host."""
    visible: int | None = None
    """Number of GPUs in CUDA_VISIBLE_DEVICES, if the file sets it to a list."""
    python: str = ""
    activate: str = ""
    variables: dict[str, list[str]] = field(default_factory=dict)
    """Profile variables whose value is a list of arguments."""
    job: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    launch: dict[str, object] = field(default_factory=dict)
    container: dict[str, object] = field(default_factory=dict)
    unread: Unread = field(default_factory=Unread)
    """The command that may start the job, but is not understood."""
    job_script: bool = False
    """Whether the file is a Slurm job script, so that --login may replace --host."""
    login: str = ""
    """The login node, if the profile is to run as a Slurm job."""
    slurm: dict[str, object] = field(default_factory=dict)
    """The profile's `slurm` section: what the job requests."""

    def translated(self, line: int, key: str, what: str) -> None:
        """Note what a line was translated to."""
        self._note(line, key, "translated", what)

    def dropped(self, line: int, key: str, why: str) -> None:
        """Note why a line has no counterpart in the profile."""
        self._note(line, key, "dropped", why)

    def ambiguous(self, line: int, key: str, what: str) -> None:
        """Note what the user must decide."""
        self._note(line, key, "ambiguous", what)

    def guess(self, number: Literal["hosts", "processes"], line: int, key: str, what: str) -> None:
        """Note a number that the file does not determine, and what is used instead."""
        self.guessed.setdefault(number, line)
        self._note(line, key, "ambiguous", what)

    def variable(self, line: int, name: str, value: str) -> None:
        """Translate a variable of the job, unless disttui sets it."""
        if name == "CUDA_VISIBLE_DEVICES":
            what = f"{shown(value)}: dropped; disttui sets it: write gpus beside the hosts"
            self.ambiguous(line, name, what)
            if re.fullmatch(r"[\w-]+(?:,[\w-]+)*", value):
                self.visible = value.count(",") + 1
        elif is_set_by_disttui(name):
            self.dropped(line, name, "disttui sets it")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            self.dropped(line, shown(name), "not a valid variable name")
        elif in_data({"job": {"env": {name: value}}}):
            self.env[name] = reference = f"${{env:{name}}}"
            self.ambiguous(
                line, name, f"looks like a secret, not copied: export it in your shell → job.env: {reference}"
            )
        else:
            self.env[name] = value
            self.translated(line, name, f"{shown(value)} → job.env")

    def _note(self, line: int, key: str, fate: Fate, what: str) -> None:
        if fate != "translated" and line and len(self.notes) >= _MOST_NOTES:
            self.unsaid += 1
        else:
            self.notes.append(LineNote(line, clean(key), fate, clean(what)))

    def wrong(self, line: int, column: int, what: str, expected: str) -> None:
        """Note an error that makes the file unusable."""
        self.problems.append(ProfileProblem(line, column, what, expected, self.source))


_FSDP_DEFAULTS = {
    "FSDP_USE_ORIG_PARAMS": "true", "FSDP_SYNC_MODULE_STATES": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_MIN_NUM_PARAMS": "100000000",
}  # fmt: skip
"""What `accelerate launch` sets where nothing is said; Accelerate itself has other defaults."""


def finish(draft: Translation, hosts: Sequence[str], script: str | None) -> Imported:
    """Make the profile from a draft.

    Args:
        hosts: Values of --host, for a file that names no hosts.
        script: The script to use instead of the file's, or None.

    Raises:
        InputError: The hosts do not fit the file, or the job cannot be converted.
        ProfileErrors: The file has errors.
    """
    if draft.problems:
        raise ProfileErrors(draft.problems)
    machines, missing = _machines(draft, hosts)
    _settle_job(draft, script)
    if draft.env.get("ACCELERATE_USE_FSDP") == "true" and (draft.launch.get("launcher") or not draft.job_script):
        draft.env = {**_FSDP_DEFAULTS, **draft.env}
    data = _data(draft, machines)
    if any(isinstance(value, list | dict) and len(value) > MAX_NODES for value in (draft.env, *draft.job.values())):
        raise InputError(f"cannot be converted: more than {MAX_NODES:,} values", place=draft.source)
    text = render(data)
    try:
        # A placeholder is not a valid host: node names replace it to check everything else.
        given = [f"var.{name}=x" for name in dict.fromkeys(re.findall(r"\$\{var:(\w+)\}", text))]
        named = {**data, "hosts": [f"node{rank}" for rank in range(len(machines))]}
        parse(render(named) if missing else text, "", given)
    except ProfileErrors as errors:
        reasons = "; ".join(problem.reason for problem in errors.problems[:5])
        raise InputError(f"cannot be converted: {reasons}", place=draft.source) from None
    for leak in in_data({"job": draft.job}):
        key = ".".join(map(str, leak.path))
        draft.ambiguous(0, key, f"looks like {leak.what}: remove it, and let the job read a variable of job.env")
    if draft.unsaid:
        draft.ambiguous(0, "…", f"{draft.unsaid:,} more notes on lines that were dropped or not understood")
    head = f"# Imported from {clean(draft.source)}. disttui profile plan shows what would run where.\n"
    notes = tuple(sorted(draft.notes, key=lambda note: note.line))
    return Imported(head + text, notes, missing, _guess(draft, len(machines), named=bool(hosts or draft.hosts)))


def _machines(draft: Translation, hosts: Sequence[str]) -> tuple[list[Machine], InputError | None]:
    line, key = draft.wanted_by
    place = f"{draft.source}:{line}" if line else draft.source
    for option, host in [*(("--host", each) for each in hosts), *([("--login", draft.login)] if draft.login else [])]:
        if flaw := flaw_of(host):
            raise InputError(f"{option} {clean(host)}: {flaw}", "Give an ssh alias, user@host:port or local.")
    if draft.login:
        return [Machine(draft.login)], None
    if hosts and draft.listed:
        raise InputError("the file names its hosts", "Omit --host, or change the file.", place=place)
    if hosts and draft.wanted and len(hosts) != draft.wanted:
        cure = f"Give --host {draft.wanted} time{'s' if draft.wanted > 1 else ''}, in the order of node ranks"
        cure += ", or --login HOST for a Slurm job." if draft.job_script else "."
        raise InputError(f"{key} is {draft.wanted:,}, but --host is given {len(hosts)} times", cure, place=place)
    if hosts:
        return [Machine(host) for host in hosts], None
    found = list(draft.hosts)
    wanted = max(draft.wanted, len(found), 1)
    if wanted > MOST_HOSTS:
        raise InputError(f"{wanted:,} hosts", f"A profile has at most {MOST_HOSTS:,}.", place=place)
    lacking = wanted - len(found)
    if not lacking:
        return found, None
    found += [Machine(f"<host {rank + 1} of {wanted}>") for rank in range(len(found), wanted)]
    what = f"the file does not name {lacking} of {wanted} hosts" if wanted > 1 else "the file names no hosts"
    given = " ".join("--host NAME" for _ in range(min(wanted, 3))) + (" …" if wanted > 3 else "")
    cure = f"Import it with {given}, or replace the lines <host …> in the profile."
    return found, InputError(what, cure, place=place)


def _guess(draft: Translation, hosts: int, *, named: bool) -> DisttuiError | None:
    """Return an error about numbers that the file does not determine, or None; `named`: the hosts are known."""
    open_ = {number: line for number, line in draft.guessed.items() if number == "processes" or not named}
    what, cure = list[str](), list[str]()
    if "hosts" in open_:
        nodes = draft.slurm.get("nodes") if draft.login else hosts
        what.append(f"the number of hosts ({nodes} is a guess)")
        cure.append("Set slurm.nodes in the profile." if draft.login else "Give --host for each host.")
    if "processes" in open_:
        number = draft.num_processes or "auto"
        what.append(f"the processes per host (num_processes: {number} is a guess)")
        cure.append("Set num_processes in the profile.")
    line = next(filter(None, open_.values()), 0)
    place = f"{draft.source}:{line}" if line else draft.source
    return (
        DisttuiError(f"the file does not determine {' and '.join(what)}", " ".join(cure), place=place)
        if open_
        else None
    )


def _settle_job(draft: Translation, script: str | None) -> None:
    kinds = ("script", "module", "command")
    if script is not None:
        for kind in kinds:
            draft.job.pop(kind, None)
        draft.job = {"script": script, **draft.job}
    elif draft.job_script and not any(kind in draft.job for kind in kinds):
        line, words, cure = draft.unread
        what = f"disttui does not know what {words} starts" if not cure else words
        what = what if line else "no known command that starts a job"
        broken = next((note for note in draft.notes if note.key == "…"), None)
        if broken and not line:
            line, what = broken.line, f"{what}: {broken.what}"
        cure = cure or "Name the script by --script, or start it by srun, torchrun, accelerate launch or python."
        raise InputError(what, cure, place=f"{draft.source}:{line}" if line else draft.source)
    elif not any(kind in draft.job for kind in kinds):
        draft.job = {"script": SCRIPT, **draft.job}
        what = f"the file names no script; {SCRIPT} is a placeholder: add --script"
        draft.ambiguous(0, "job.script", what)


def _data(draft: Translation, machines: Sequence[Machine]) -> dict[str, object]:
    counts = {one.num_processes for one in machines}
    common = draft.num_processes if counts == {None} else counts.pop() if len(counts) == 1 else None
    single = draft.gpus if len(machines) == 1 else None
    listed: list[object] = []
    for one in machines:
        own: dict[str, object] = {}
        if common is None and one.num_processes is not None:
            own["num_processes"] = one.num_processes
        if (gpus := one.gpus or single) is not None:
            own["gpus"] = list(gpus)
        listed.append({"host": one.host, **own} if own else one.host)
    data: dict[str, object] = {
        "disttui": 1,
        "name": slug(draft.name or draft.source.rpartition("/")[2].partition(".")[0]),
        "hosts": listed,
        "num_processes": common,
        "python": draft.python,
        "activate": draft.activate,
        "var": draft.variables,
        "job": {**draft.job, **({"env": draft.env} if draft.env else {})},
        "container": draft.container,
        "launch": draft.launch,
        "slurm": draft.slurm,
    }
    return {key: value for key, value in data.items() if value not in (None, "", {})}


def count(draft: Translation, line: int, key: str, text: str, most: int = MOST_PROCESSES) -> int | None:
    """Return a whole number from 1 to `most`, or add a problem and return None."""
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most:
        return int(text)
    draft.wrong(line, 1, f"{key}: {shown(text)}", f"expected a whole number from 1 to {most:,}")
    return None


def shown(text: str) -> str:
    """Return a value of the file for a note: at most 60 characters, safe for a terminal."""
    text = clean(text)
    return (text if len(text) <= 60 else text[:59] + "…") or "''"
