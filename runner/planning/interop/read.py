"""Translates a file of another launcher to a profile: recognises its kind, and reads MPI hostfiles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.hosts.discovery import PE_HOST, HostLine, flaw_of, host_lines, spread
from disttui.runner.planning.interop import from_accelerate, from_deepspeed, from_sbatch
from disttui.runner.planning.interop.draft import Imported, Machine, Translation, finish, shown
from disttui.runner.planning.interop.shell import without_marks
from disttui.runner.profile.fields import MOST_PROCESSES, split_host
from disttui.runner.profile.nodes import MappingNode, compose
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem
from disttui.runner.profile.schema import MOST_HOSTS

_MOST_PROBLEMS = 50
"""Problems after which reading stops."""


_IS_LIMIT = re.compile(r"max[_-]?slots=\d+", re.IGNORECASE)
_NEAR_SLOTS = re.compile(
    r"(?:max[_-]?)?slots?|count|cpu|port|np?=|ppn|n?procs?|processes|n?tasks|n?gpus?|\d|[^=]*$", re.IGNORECASE
)
"""An option that may set the processes of a host, in a form that no known launcher reads."""
_COUNT_BEHIND = re.compile(r".+[=*]\d{1,6}")
"""A count in a form that no known launcher reads: n1=4, n1*4."""
_LOOPBACK = re.compile(r"localhost[46]?(?:\.localdomain[46]?)?|127(?:\.\d{1,3}){3}|::1|ip6-localhost", re.IGNORECASE)


def read(text: str, draft: Translation) -> None:
    """Translate a hostfile; the slots of a host on several lines add up, with one for a line without slots."""
    counts: dict[str, int | None] = {}
    for line in host_lines(text):
        if len(draft.problems) >= _MOST_PROBLEMS:
            return
        if line.host.lower() == "rank" and any("=" in word for word in line.rest[:2]):
            draft.wrong(line.number, 1, "a line of a rankfile", "expected a hostfile, with lines like: node1 slots=4")
            return
        if line.host[0] in "+^":
            draft.wrong(line.number, 1, shown(line.host), "expected names: + and ^ refer to the nodes of another list")
            continue
        if _COUNT_BEHIND.fullmatch(line.host):
            draft.wrong(line.number, 1, shown(line.host), "write it like: node1 slots=4")
            continue
        try:
            names = spread(line.host)
        except InputError as error:
            draft.wrong(line.number, 1, error.what, "expected a name, or a range like node[1-4]")
            continue
        if not names:
            draft.wrong(line.number, 1, f"{shown(line.host)} names no host", "write it like: node1 slots=4")
        for name in names:
            if flaw := flaw_of(name):
                what = f"{shown(line.host)} is not a host: {flaw}"
                draft.wrong(line.number, 1, what, "write it like: node1 slots=4")
                break
            if len(counts) >= MOST_HOSTS and name not in counts:
                draft.wrong(line.number, 1, f"more than {MOST_HOSTS:,} hosts", "remove some")
                return
            _add(draft, line, name, counts)
    if not counts and not draft.problems:
        draft.wrong(1, 1, "no hosts", "expected lines like: node1 slots=4")
    if counts and not draft.problems:
        what = "a file of mpirun or deepspeed → torchrun, which starts the same; or set one of them"
        draft.ambiguous(0, "launch.launcher", what)
    draft.hosts = [Machine(name, slots) for name, slots in counts.items()]
    draft.listed = True


def _add(draft: Translation, line: HostLine, name: str, counts: dict[str, int | None]) -> None:
    slots, again = line.slots, name in counts
    before = counts.get(name) or 1 if again else 0
    total = before + (1 if slots is None and again else slots or 0)
    if slots == 0 or total > MOST_PROCESSES:
        draft.wrong(line.number, 1, f"{shown(name)}: {total:,} slots", f"expected 1 to {MOST_PROCESSES:,}")
        return
    counts[name] = total or None
    if again:
        what = f"given again: {before} + {slots or 1} slots"
        draft.ambiguous(line.number, shown(name), f"{what} → num_processes: {total}")
    elif slots is None:
        what = "no slots → num_processes: auto, one per GPU or core (MPI: one process)"
        draft.ambiguous(line.number, shown(name), what)
    else:
        draft.translated(line.number, shown(name), f"{amount(slots, 'slot')} → num_processes: {slots}")
    if _LOOPBACK.fullmatch(split_host(name)[1]):
        what = "the machine that runs mpirun: write its name, or local for this one"
        draft.ambiguous(line.number, shown(name), what)
    for word in line.rest:
        # A word without a value may be another host: LSF writes all hosts into one line.
        known = _NEAR_SLOTS.match(word)
        if known and not _IS_LIMIT.fullmatch(word):
            draft.wrong(line.number, 1, f"{shown(name)}: {shown(word)}", "write it like: node1 slots=4")
            return
        draft.dropped(line.number, shown(name), f"{shown(word)} has no counterpart")


Kind = Literal["accelerate", "hostfile", "deepspeed", "sbatch"]

_SBATCH = re.compile(r"\A#!|^#SBATCH\b", re.MULTILINE)
_STARTS = re.compile(
    r"^(?:[A-Z_]\w{0,40}=\S{0,200}\s){0,20}(?:srun|torchrun|accelerate launch|deepspeed|mpirun|python3?)\s+[^\s=:]",
    re.MULTILINE,
)
"""A line that starts a job, which identifies a shell script without `#!`."""
_SHELL_NAMES = (".sh", ".bash", ".sbatch", ".slurm")
_ACCELERATE = re.compile(
    r"""^[ \t{]*["']?(?:distributed_type|compute_environment|num_machines|machine_rank)["']?\s*:""", re.MULTILINE
)
_DEEPSPEED = re.compile(
    r'"(?:train_batch_size|train_micro_batch_size_per_gpu|zero_optimization|zero_allow_untested_optimizer'
    r'|gradient_accumulation_steps|gradient_clipping|optimizer|scheduler|bf16|fp16)"\s*:'
)
_PROFILE = re.compile(r"^disttui\s*:", re.MULTILINE)
_HOST = re.compile(
    r"\s*(?:#.*|(?:[^\s:#{}\"',\[]|\[[^\]\s]*\](?:,(?=\S))?)+(?::\d+)?(?:\s+[\w-]+\s*=\s*[\w,.-]+)*\s*(?:#.*)?)?"
)
_COUNTED_NAMES = re.compile(r"\s*(?=[^#]*:\d)[^\s:,#\[\]{}\"']+(?::\d+)?(?:,[^\s:,#\[\]{}\"']+(?::\d+)?)+\s*(?:#.*)?")


def recognise(text: str) -> Kind | Literal["profile"] | None:
    """Return the kind of a file, or None if it is not recognised."""
    if _SBATCH.search(text):
        return "sbatch"
    if _PROFILE.search(text):
        return "profile"
    if _ACCELERATE.search(text):
        return "accelerate"
    if text.lstrip().startswith("{") and _DEEPSPEED.search(text):
        return "deepspeed"
    lines = text.splitlines()
    of_hosts = all(any(form.fullmatch(line) for form in (_HOST, _COUNTED_NAMES, PE_HOST)) for line in lines)
    if of_hosts and any(line.partition("#")[0].strip() for line in lines):
        return "hostfile"
    return "sbatch" if _STARTS.search(text) else None


MAX_SIZE = 1024 * 1024
"""Bytes of the largest file to import."""
_KINDS = "accelerate, hostfile, deepspeed or sbatch"


def read_foreign(
    text: str,
    source: str,
    kind: Kind | None = None,
    hosts: Sequence[str] = (),
    script: str | None = None,
    login: str | None = None,
) -> Imported:
    """Translate a file of another launcher to an equivalent profile.

    Args:
        source: The file's name, for messages and for the profile's name.
        kind: The kind of file; None to recognise it from the content.
        hosts: Hosts in the order of node ranks, for a file that names none.
        script: The script to use instead of the file's, or None.
        login: The login node of a job script, whose profile then runs as a Slurm job.

    Raises:
        InputError: The file cannot be used or the options do not fit it; ProfileErrors if lines have errors.
    """
    found = kind or recognise(text) or ("sbatch" if text.strip() and source.endswith(_SHELL_NAMES) else None)
    if found == "profile":
        raise InputError("this is already a profile", "See what it runs: disttui profile plan", place=source)
    if found is None:
        what = f"not a file of {_KINDS}" if text.strip() else "the file is empty"
        raise InputError(what, f"Give its kind with --from: {_KINDS}.", place=source)
    if login is not None and (hosts or found != "sbatch"):
        what = "--login and --host exclude each other" if hosts else f"--login is only for job scripts, not {found}"
        raise InputError(what, "Give one of the two." if hosts else "Omit --login.", place=source)
    hosts = [name for host in hosts for name in spread(host)]
    draft = Translation(source, login=login or "")
    if found == "hostfile":
        read(text, draft)
    elif found == "sbatch":
        try:
            from_sbatch.read(without_marks(text), draft, len(hosts))
        except RecursionError:
            what = "the script is nested too deeply to be read"
            raise InputError(what, "Write nested $(…), `if` and similar into variables.", place=source) from None
    elif found == "accelerate":
        from_accelerate.AccelerateReader(_mapping(text, draft), draft, len(hosts)).read()
    else:
        from_deepspeed.read(_mapping(text, draft), draft, len(hosts))
    return finish(draft, hosts, script)


def _mapping(text: str, draft: Translation) -> MappingNode:
    # YAML forbids tabs where JSON allows them; a JSON string cannot contain one.
    node = compose(text.expandtabs(2) if text.lstrip().startswith("{") else text, draft.source, draft.problems)
    if isinstance(node, MappingNode):
        return node
    raise ProfileErrors([*draft.problems, ProfileProblem(1, 1, "not a mapping", "expected keys", draft.source)])
