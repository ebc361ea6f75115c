"""Explains why a run hangs, from the stacks of all ranks and torch's flight recorders. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disttui.runner.diagnose.frames import Frame, faulthandler_frames, folded, forked, in_files, main_frames, own
from disttui.runner.formatting import duration, ranges
from disttui.runner.protocol.files import ChildStack, CollectiveEntry, RankStacks
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean

_COLLECTIVES = frozenset(
    """all_reduce all_reduce_coalesced broadcast broadcast_object_list barrier monitored_barrier reduce all_gather
    all_gather_into_tensor all_gather_object gather gather_object scatter scatter_object_list reduce_scatter
    reduce_scatter_tensor all_to_all all_to_all_single send recv batch_isend_irecv all_gather_coalesced
    reduce_scatter_tensor_coalesced _all_gather_base _reduce_scatter_base all_gather_tensor wait_tensor
    _verify_param_shape_across_processes _sync_params_and_buffers _sync_module_states""".split()  # noqa: SIM905
)
"""Functions of torch.distributed that wait for other ranks; the last three run when DDP or FSDP wraps a model."""
LONG = 30.0
"""Seconds after which a collective that all ranks have entered counts as hung; as the leader's limit for a stall."""
_JOINING = frozenset({"init_process_group", "_store_based_barrier", "rendezvous", "_create_c10d_store", "new_group"})


@dataclass(frozen=True)
class Standing:
    """Where one rank is, as far as it answered."""

    rank: int
    host: str
    frames: tuple[Frame, ...]
    state: str
    """"" for a running process, else "stopped", "kernel", "ended" or "mute"."""
    note: str
    pid: int
    silent: float | None
    """Seconds since its last step or collective or, if neither is known, its last output; None if unknown. Includes
    `age`."""
    moved: bool
    answer: RankStacks
    age: float = 0.0
    """Seconds that the stall has lasted since the rank was asked; 0 if it is over."""
    step: float | None = None
    """The last step that it logged."""

    @property
    def mine(self) -> Frame | None:
        """The innermost frame of the user's code, as from `own`."""
        return own(self.frames)

    @property
    def works(self) -> bool:
        """Whether it, or one of its child processes, is working."""
        return self.moved or any(map(_computes, self.answer.get("children", [])))

    @property
    def interrupted(self) -> bool:
        """Whether its main thread runs other code inside a collective, such as a signal handler."""
        return not self.collective and any(map(_enters, self.frames))

    @property
    def spawner(self) -> bool:
        """Whether it waits for processes started with torch.multiprocessing.spawn."""
        return not self.state and any("torch/multiprocessing/spawn.py" in frame.file for frame in self.frames)

    @property
    def collective(self) -> str:
        """The collective or joining function on its main thread's stack, or ""."""
        return collective(self.frames)


def collective(frames: Sequence[Frame]) -> str:
    """The collective or joining function that a stack is in, or "".

    User code that runs inside one, such as a signal handler, does not count as that collective.
    """
    for frame in reversed(frames):
        if _enters(frame):
            return frame.function
        if not frame.library and "/torch/" not in frame.file:
            break
    return ""


def _enters(frame: Frame) -> bool:
    return "torch/distributed" in frame.file and frame.function in _COLLECTIVES | _JOINING


def standing(rank: int, host: str, answer: RankStacks, later: RankStacks | None = None, age: float = 0.0) -> Standing:
    """Parse a rank's answer (docs/formats.md, "Stacks"); `later` is a second answer, to detect movement."""
    frames = main_frames(answer)
    state = answer.get("state") or ("" if frames else "mute")
    note, pid = clean(answer.get("note", ""))[:300], answer.get("pid", 0)
    moved = answer.get("moved", False) or (later is not None and _differ(answer, later))
    silent = _silent(answer)
    since = None if silent is None else silent + age
    return Standing(rank, clean(host), frames, state, note, pid, since, moved, answer, age, answer.get("step"))


def _silent(answer: RankStacks) -> float | None:
    """Seconds since a rank's last step or collective, else since its last output; None if unknown.

    Output counts least, since any thread may print, such as that of a progress bar.
    """
    asked, signs = answer.get("t"), [answer["stepped"]] if "stepped" in answer else []
    entered = [call.since for group in progress(answer).values() for call in group.calls.values() if call.since]
    signs += [asked - max(entered)] if asked is not None and entered else []
    return max(0.0, min(signs)) if signs else answer.get("silent")


def _differ(first: RankStacks, later: RankStacks) -> bool:
    """Whether a rank's step, stack or flight recorder changed between two samples; its output does not count."""
    if later.get("moved") or first.get("step") != later.get("step"):
        return True
    if not (first.get("threads") and later.get("threads")):
        return False

    def look(answer: RankStacks) -> tuple[Any, ...]:
        entered = {group: (one.enqueued, one.completed) for group, one in progress(answer).items()}
        return [(frame.file, frame.function) for frame in main_frames(answer)], entered

    return look(first) != look(later)


def standings(state: RunState) -> list[Standing]:
    """All ranks by the stacks collected at the newest stall, sorted; empty if there are none."""
    known = [(host, host.stacks) for host in state.hosts if host.stacks]
    leader = state.hosts[0].story
    lasts = leader.stood is not None and leader.stood_until is None
    newest = max((file.number for _, file in known), default=0)
    found = []
    for host, file in known:
        if file.number != newest or file.stacks.get("attempt") != state.attempt:
            continue
        heard = max(host.story.last, host.telemetry["t"] if host.telemetry else 0.0)
        for rank, answer in file.stacks.get("ranks", {}).items():
            if rank.isdecimal() and len(rank) < 10:
                age = max(0.0, heard - answer.get("t", heard)) if lasts else 0.0
                found.append(standing(int(rank), host.name, answer, age=age))
    return sorted(found, key=lambda one: one.rank)


def sentences(ranks: Sequence[Standing]) -> list[str]:
    """Sentences on what blocks the run, most informative first."""
    by_rank = {one.rank: one for one in ranks}
    explained: set[int] = set()
    lines = []
    for wait in _waits(ranks):
        lines.append(_wait_sentence(wait, by_rank))
        explained |= {*wait.inside, *wait.missing}
    # Ranks without a wait in the flight recorders are described by their stacks.
    rest = [one for one in ranks if one.rank not in explained]
    lines += [_unasked(one) for one in rest if one.state]
    for group in merge(one for one in rest if not one.state):
        lines.append(f"{names(group)} {_be(group)} {_doing(group[0])}{_since(group)}")
    lines += [line for one in ranks for line in _children(one)]
    if any(one.spawner for one in rest):
        lines.append(
            "this script starts its own processes (torch.multiprocessing.spawn) in every rank. Call its main function "
            "directly, with RANK, LOCAL_RANK and WORLD_SIZE from the environment"
        )
    return lines


def awaited(ranks: Sequence[Standing]) -> frozenset[int]:
    """The ranks that others wait for: those missing in a collective, or unable to continue."""
    known = _waits(ranks)
    missing = {rank for wait in known for rank in wait.missing}
    stuck = {one.rank for one in ranks if one.state or one.interrupted}
    if missing or stuck or known:
        return frozenset(missing or stuck)
    if not any(one.collective for one in ranks):
        return frozenset()
    return frozenset(one.rank for one in ranks if not one.collective and not one.moved)


def _waits(ranks: Sequence[Standing]) -> list[Wait]:
    """The waits in the flight recorders, without those that a rank has left since."""
    asked = {one.rank: progress(one.answer) for one in ranks if one.frames and "recorder" in one.answer}
    moved = {one.rank for one in ranks if one.moved}
    return [wait for wait in recorder_waits(asked) if not moved.intersection(wait.inside)]


def merge(ranks: Iterable[Standing]) -> list[list[Standing]]:
    """Group ranks by their stack and state, largest group first, so that odd ones come last."""
    groups: dict[Any, list[Standing]] = {}
    for one in ranks:
        groups.setdefault((one.frames, one.state), []).append(one)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))


def stacks(ranks: Sequence[Standing]) -> list[str]:
    """Lines of every distinct stack, below the ranks that have it."""
    lines = []
    for group in merge(one for one in ranks if one.frames):
        hosts = ", ".join(dict.fromkeys(one.host for one in group))
        lines.append(f"{names(group)} ({hosts}):")
        lines += [f"    {line}" for line in folded(group[0].frames)]
    return lines


def names(ranks: Sequence[Standing]) -> str:
    """`rank 1`, `ranks 0, 2`, `ranks 0-3, 7`."""
    return rank_words([one.rank for one in ranks])


def rank_words(numbers: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2`, `ranks 0-3, 7`."""
    return ("rank " if len(numbers) == 1 else "ranks ") + ranges(numbers)


def _wait_sentence(wait: Wait, ranks: Mapping[int, Standing]) -> str:
    inside = [ranks[rank] for rank in wait.inside]
    if wait.mismatched:
        return _mismatch(wait, ranks)
    name = next((call.name for call in wait.calls.values()), "") or inside[0].collective or "a collective"
    where = f"{name} #{wait.number}" + (f" of process group {wait.group[1]}" if wait.group[1] != "0" else "")
    line = f"{names(inside)} {_verb(inside, 'wait')} in {where}{_places(inside)}"
    if wait.missing:
        for group in merge(ranks[rank] for rank in wait.missing):
            verb, it, be = ("has", "it", "is") if len(group) == 1 else ("have", "they", "are")
            since = _since(group)
            be = f"{verb} been" if since.startswith(" for ") else be
            line += f"; {names(group)} {verb} not entered it: {it} {be} {_doing(group[0])}{since}"
    elif busy := [one for one in inside if one.interrupted]:
        for group in merge(busy):
            line += f"; {names(group)}, inside it, {_be(group)} {_doing(group[0])}"
    elif not [one for one in ranks.values() if one.rank not in wait.inside]:
        line += f"{_for(_within(wait, inside))}, which all ranks have entered"
        if (_within(wait, inside) or 0.0) >= LONG:
            # A GPU runs a collective only after all work queued before it.
            or_gpu = ", or the work of a GPU before it," if wait.group[0] == "nccl" else ""
            line += f": the network between them{or_gpu} is slow or broken"
    return line


def _within(wait: Wait, inside: Sequence[Standing]) -> float | None:
    """Seconds that all of `inside` have been in a collective, by its start or else their `silent`; None if unknown."""
    found = []
    for one in inside:
        call, asked = wait.calls.get(one.rank), one.answer.get("t")
        since = call.since if call else None
        entered = asked - since + one.age if since is not None and asked is not None else one.silent
        found += [] if entered is None else [max(0.0, entered)]
    return min(found, default=None)


def _mismatch(wait: Wait, ranks: Mapping[int, Standing]) -> str:
    calls: dict[str, list[Standing]] = {}
    only_sizes = len({call.name for call in wait.calls.values()}) == 1
    for rank, call in wait.calls.items():
        words = f"{call.name} of {call.sizes}" if only_sizes or call.sizes else call.name
        calls.setdefault(words, []).append(ranks[rank])
    parts = [f"{names(group)} {_verb(group, 'call')} {clean(call)}{_places(group)}" for call, group in calls.items()]
    steps = {rank: ranks[rank].step for rank in wait.calls}
    logged = ", ".join(f"rank {rank} step {step:.0f}" for rank, step in sorted(steps.items())[:8] if step is not None)
    line = f"the ranks call different collectives as #{wait.number}: {'; '.join(parts)}"
    line += f"; logged last: {logged}" if logged else ""
    return f"{line}; look for a branch that only some ranks take"


def _unasked(one: Standing) -> str:
    if one.state == "stopped":
        return (
            f"rank {one.rank} cannot answer: its process is stopped by a signal (SIGSTOP) or a debugger; "
            f"`kill -CONT {one.pid}` on {one.host} resumes it"
        )
    if one.state == "ended":
        return f"rank {one.rank} on {one.host} has ended"
    return f"no stack of rank {one.rank} on {one.host}: {one.note or 'no reason known'}"


def _computes(child: ChildStack) -> bool:
    return child.get("note") == "running"


def _children(one: Standing) -> list[str]:
    """What a rank's child processes do; those that do the same share a line."""
    found: dict[str, list[str]] = {}
    for child in one.answer.get("children", []):
        frame = own(forked(faulthandler_frames(child.get("text", ""))))
        if frame:
            words = f": in {frame.function} ({frame.place})" + (", computing" if _computes(child) else "")
        else:
            words = f" ({clean(child.get('command', '?'))[:60]}): no stack, {clean(child.get('note', '?'))[:100]}"
        found.setdefault(words, []).append(str(child.get("pid", "?")))
    return [
        f"rank {one.rank}'s child process{'es' if len(pids) > 1 else ''} {', '.join(pids)}{words}"
        for words, pids in found.items()
    ]


def _doing(one: Standing) -> str:
    mine = one.mine
    if mine is None:
        return "at an unknown line"
    if one.spawner:
        return f"waiting in torch.multiprocessing.spawn ({mine.place})"
    inner = (in_files(one.frames) or [mine])[-1]
    if one.collective in _JOINING:
        return f"in {one.collective} ({mine.place}), waiting for the others to join"
    if one.collective:
        return f"in {one.collective} ({mine.place})"
    inside = f", inside {inner.place.partition('.py')[0]}.{inner.function}" if inner is not mine else ""
    function = "at the top level" if mine.function == "<module>" else f"in {mine.function}"
    return f"{function} ({mine.place}{inside})"


def _since(group: Sequence[Standing]) -> str:
    """How long ranks have been where they are, or that they keep working if they moved between two samples."""
    silent = [one.silent for one in group if one.silent is not None]
    moved = [one for one in group if one.moved]
    if moved:
        some = f"; {names(moved)}" if len(moved) < len(group) else ", and"
        return f"{some} {'keeps' if len(moved) == 1 else 'keep'} working"
    return _for(min(silent, default=None))


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" for {_seconds(seconds)}"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value < 120 else duration(value)


def _places(group: Sequence[Standing]) -> str:
    places = list(dict.fromkeys(one.mine.place for one in group if one.mine))
    return f" ({', '.join(places[:3])}{', …' if len(places) > 3 else ''})" if places else ""


def _verb(group: Sequence[Standing], plural: str) -> str:
    return plural + "s" if len(group) == 1 else plural


def _be(group: Sequence[Standing]) -> str:
    return "is" if len(group) == 1 else "are"


Group = tuple[str, str]
"""Backend and number of a process group; the same on every rank."""


@dataclass(frozen=True)
class Call:
    """A collective as called by one rank."""

    name: str
    sizes: str
    since: float | None = None
    """Unix time at which it was entered, by the clock of the rank's host; None if unknown."""


@dataclass(frozen=True)
class GroupProgress:
    """How far one rank is in one process group."""

    enqueued: int
    completed: int
    calls: Mapping[int, Call]
    """Number → recent call."""


@dataclass(frozen=True)
class Wait:
    """Ranks that wait for others in one process group."""

    group: Group
    number: int
    """Number of the collective, counted from 1 within the group."""
    inside: tuple[int, ...]
    missing: tuple[int, ...]
    calls: Mapping[int, Call]
    """Rank → its call with that number."""

    @property
    def mismatched(self) -> bool:
        """Whether the ranks inside have called different collectives, or with different sizes."""
        shaped = {(call.name, call.sizes) for call in self.calls.values() if _same_shaped(call.name)}
        return len({call.name for call in self.calls.values()}) > 1 or (not self.missing and len(shaped) > 1)


_WORLD = "0"
"""Number and name of the process group that all ranks are in."""


def progress(answer: RankStacks) -> dict[Group, GroupProgress]:
    """Parse the flight `recorder` of a rank's answer: progress in each process group."""
    found: dict[Group, GroupProgress] = {}
    for backend, trace in answer.get("recorder", {}).items():
        entries = trace.get("entries", [])
        # The numbers are a rank's own: two ranks may give one number to different subgroups.
        names = {str(one["pg_id"]): one["process_group"][0] for one in entries if "pg_id" in one and _group(one)}
        for number, status in trace.get("pg_status", {}).items():
            enqueued = _number(status.get("last_enqueued_collective"))
            completed = _number(status.get("last_completed_collective"))
            group = names.get(number, number if number == _WORLD or not names else "")
            if enqueued >= 0 and group:
                found[backend, group] = GroupProgress(enqueued, completed, dict(_calls(entries, group)))
    return found


def recorder_waits(ranks: Mapping[int, Mapping[Group, GroupProgress]]) -> list[Wait]:
    """One `Wait` for each process group in which a rank waits.

    The ranks with the lowest number of entered collectives are missing; none is if all have entered the same number.
    """
    groups = sorted({group for each in ranks.values() for group in each})
    found = []
    for group in groups:
        members = {rank: each[group] for rank, each in ranks.items() if group in each}
        if group[1] == _WORLD:
            # A recorder lists a group only after its first collective.
            members = {rank: members.get(rank, GroupProgress(0, -1, {})) for rank in ranks}
        lowest = min(one.enqueued for one in members.values())
        behind = [rank for rank, one in members.items() if one.enqueued == lowest]
        if len(behind) < len(members):
            number = lowest + 1
            inside = [rank for rank, one in members.items() if rank not in behind and one.completed < one.enqueued]
            if not inside:
                continue
        elif any(one.completed < one.enqueued for one in members.values()):
            number, inside, behind = lowest, list(members), []
        else:
            continue
        calls = {rank: members[rank].calls[number] for rank in inside if number in members[rank].calls}
        found.append(Wait(group, number, tuple(sorted(inside)), tuple(sorted(behind)), calls))
    return found


def _calls(entries: Iterable[CollectiveEntry], group: str) -> Iterator[tuple[int, Call]]:
    for entry in entries:
        if entry.get("is_p2p") or _group(entry) != group:
            continue
        name = entry.get("profiling_name", "?").rpartition(":")[2].strip("_")
        sizes = str(entry.get("input_sizes", "")).replace(" ", "")
        since = entry.get("time_created_ns", 0) / 1e9
        call = Call(re.sub(r"[^\w ]", "", name)[:60], sizes[:200], since if since > 0 else None)
        yield entry.get("collective_seq_id", -1), call


def _group(entry: CollectiveEntry) -> str:
    """The name of its process group; empty if it has none."""
    return next(iter(entry.get("process_group", [])), "")


def _same_shaped(name: str) -> bool:
    """Whether all ranks must pass the same sizes, unlike in scatters, gathers and uneven splits."""
    return name in ("all_reduce", "allreduce", "broadcast", "reduce")


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return -1
