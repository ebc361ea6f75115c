"""Describes how a run ended (its result, or the root cause and its consequences), and its events, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from disttui.runner.diagnose.cause import Failure, RootCause, find
from disttui.runner.diagnose.doubts import doubts, straggler_sentence
from disttui.runner.diagnose.frames import fold_traceback, frames, own
from disttui.runner.diagnose.hang import collective, rank_words, sentences, standings
from disttui.runner.diagnose.hints import hint
from disttui.runner.formatting import amount, code_words, duration, figure, gibibytes, number, when
from disttui.runner.ids import short
from disttui.runner.protocol.events import Death, Event, Held, LeftProcess, Unhandled
from disttui.runner.protocol.files import LauncherPart
from disttui.runner.render.status import (
    accuracy,
    loss_of,
    stall_words,
    stopped_by_user,
    throughput,
    ungrouped,
    ungrouped_words,
)
from disttui.runner.runs.condition import is_lost, run_word
from disttui.runner.runs.registry import KnownRun, removed_words
from disttui.runner.runs.state import RunState
from disttui.runner.runs.summary import SUPERVISORS_DIED
from disttui.runner.text import clean, clean_lines, set_apart

_SHOWN = 5
"""Most entries shown of a long list."""
_LONGEST = 300
"""Most characters of an error message in a line."""
_SHORTLY = 120.0
"""Most seconds between the end of a stall and the end of the run for the stall to count as a possible cause."""
_JUST = 10.0
"""Seconds in a collective below which a rank does not count as stuck, if the run continued after the stall."""


def recorded_word(run: KnownRun, state: RunState) -> str:
    """The state of a run in one word, as in `ps`; `state` is built from its records."""
    return run_word(state) if state.result is not None or is_lost(state) else run.summary()["state"]


def lost_words(state: RunState) -> str:
    """Why a run is lost."""
    if state.lost:
        return state.lost
    gone = [host.name for host in state.hosts if host.link == "gone"]
    return removed_words(gone) if gone else SUPERVISORS_DIED


def ending(
    state: RunState, elapsed: float, folder: Path, launcher_tails: Mapping[str, str], attempts: int = _SHOWN
) -> list[str]:
    """The lines that a command prints when a run ends; the root exception, if any, comes last.

    Args:
        launcher_tails: Host → last lines of the launcher's own output, for launches that failed before any rank ran.
        attempts: Most earlier attempts to list with the causes of their failure.
    """
    lines = [*closing(state, elapsed, attempts), f"logs: {folder}"]
    if state.problem or is_lost(state):
        return lines
    if state.result is None:
        return [*lines, *left_lines(state.run)]
    cause = None if state.result.get("state") in ("finished", "stopped") else find(state)
    return [*lines, *_detail(cause.failure, launcher_tails)] if cause else lines


def closing(state: RunState, elapsed: float, attempts: int = _SHOWN) -> list[str]:
    """The lines of `ending` without the folder of the logs and the exception."""
    result = state.result
    before = [f"  {line}" for line in earlier(state, attempts)]
    if state.problem:
        return [f"✗ {short(state.run)} could not be started: {clean_lines(state.problem)}", *before]
    if is_lost(state):
        lost, cure = lost_words(state), f"disttui stop {short(state.run)} ends any remaining processes"
        then = cure if lost == SUPERVISORS_DIED else "its ranks were ended with it"
        return [f"✗ {short(state.run)} is lost: {lost}; {then}", *before]
    if result is None:
        return ["detached; the run continues", *before]
    kind = result.get("state", "ended")
    if kind == "finished":
        return [_trained(state, elapsed), *before, *(f"! {word}" for word in _doubts(state))]
    if kind == "stopped":
        why = [*(f"  {line}" for line in stall_lines(state)), *(f"! {word}" for word in _alone(state))]
        stopped = f"■ {short(state.run)} stopped after {duration(elapsed)}{_at_step(state)}"
        return [stopped, *why, *_left(state), *before]
    cause = find(state)
    if cause is None:
        failed = f"✗ {short(state.run)} {kind} after {duration(elapsed)}{_at_step(state)}: no cause was reported"
        return [failed, *_left(state), *before]
    return [*_failed(state, cause, elapsed), *_left(state), *before]


def left_lines(run: str) -> list[str]:
    """Commands to watch or stop a run that continues without its viewer."""
    return [f"watch it: disttui attach {short(run)}", f"stop it: disttui stop {short(run)}"]


def _trained(state: RunState, elapsed: float) -> str:
    metrics = state.metrics
    size = f"{amount(state.world_size, 'rank')} on {amount(len(state.hosts), 'host')}"
    words = [f"✓ {short(state.run)} finished in {duration(elapsed)}: {size}"]
    if state.attempt > 1:
        words[0] += f", in attempt {state.attempt}"
    first, last = figure(state.first_loss), figure(metrics.get("loss"))
    if last is not None:
        words_of_loss = f"loss {first} → {last}" if first not in (None, last) else f"loss {last}"
        words.append(words_of_loss + loss_of(state))
    validated = figure(metrics.get("val_loss"))
    if validated is not None:
        words.append(f"validation loss {validated}")
    return "  ".join([*words, *accuracy(metrics), *throughput(metrics)])


def _alone(state: RunState) -> list[str]:
    """A warning about the hosts whose ranks may have trained without the others; empty if there are none."""
    alone = ungrouped(state)
    if not alone:
        return []
    where = (
        "on any host"
        if len(alone) == len(state.hosts)
        else f"on {', '.join(alone[:_SHOWN])}{', …' if len(alone) > _SHOWN else ''}"
    )
    short = "a custom group of less than half a second is not detected"
    return [f"no rank was seen in a process group {where}: each may have trained alone ({short})"]


def _doubts(state: RunState) -> list[str]:
    """Doubts about a run that finished: no process group, no metrics, a loss that is not finite."""
    silent = not any(host.series for host in state.hosts)
    attempts = [host.story.attempts.get(state.attempt) for host in state.hosts]
    unchecked = any(one and one.unchecked for one in attempts)
    together = ["not checked: whether the ranks trained together"] if unchecked else _alone(state)
    unread = ["no metrics found in the output"] if silent else []
    return [*together, *unread, *doubts(state)]


def _failed(state: RunState, cause: RootCause, elapsed: float) -> list[str]:
    words = root_words(state, cause)
    lines = [f"✗ {short(state.run)} failed after {duration(elapsed)}{_at_step(state)}: {words}"]
    lines += [f"  {line}" for line in others(state, cause)]
    lines += [f"  {line}" for line in stall_lines(state)]
    known = hint(state, cause)
    if known:
        lines.append(f"  → {known.text}")
    return lines


def stall_lines(state: RunState) -> list[str]:
    """Where the ranks were stuck, if the newest attempt ended in a stall, or failed shortly after one.

    NCCL's watchdog logs for a minute before it ends a rank that has waited for too long, which ends the stall. Empty
    if no rank was stuck: all kept working without output, as in long imports, or the run continued and all had just
    entered a collective.
    """
    stood = state.hosts[0].story.stood
    if stood is None:
        return []
    until, result = state.hosts[0].story.stood_until, state.result
    over = until is not None
    if until is not None and result is not None:
        shortly = result.get("t", float("inf")) - until < _SHORTLY
        if not (shortly and result.get("state") == "failed"):
            return []
    elif over:
        return []
    ranks = standings(state)
    if all(one.moved or (over and one.silent is not None and one.silent < _JUST) for one in ranks):
        return []
    words = "when it stalled" if any(one.works for one in ranks) else "it stalled"
    return [f"{'before that ' if over else ''}{words}: {line}" for line in sentences(ranks)]


def others(state: RunState, cause: RootCause) -> list[str]:
    """Lines on the other ranks: those that failed as well, and those that were stopped because of the root cause."""
    own = [one for one in cause.consequences if one.rank is not None and not one.follows]
    same = [one for one in own if _what(one) == _what(cause.failure)]
    lines = [f"the same error: {_places(state, [one.rank for one in same])}"] if same else []
    lines += [f"failed as well: {cause_words(state, one)}" for one in own if one not in same][:_SHOWN]
    stopped = {one.rank for one in cause.consequences if one.follows}
    finished: set[int] = set()
    for host in state.hosts:
        known = host.story.attempts.get(cause.attempt)
        if known and not (cause.failure.kind == "host lost" and cause.failure.node == host.node):
            stopped |= set(known.ranks)
            # A rank that finished may have been killed while its interpreter was exiting.
            finished |= set(known.finished)
    stopped -= {cause.failure.rank, None, *(one.rank for one in own), *finished}
    return [*lines, f"stopped because of it: {_places(state, stopped)}"] if stopped else lines


def _what(failure: Failure) -> tuple[Any, ...]:
    # The exit code after an exception adds nothing and may not be known yet.
    return failure.kind, failure.type, failure.message, None if failure.kind == "exception" else failure.code


def _places(state: RunState, ranks: Iterable[int | None]) -> str:
    by_host: dict[str, list[int]] = {}
    for rank in sorted(rank for rank in ranks if rank is not None):
        by_host.setdefault(state.host_of(rank), []).append(rank)
    return ", ".join(f"{rank_words(found)} on {host}" for host, found in by_host.items())


def earlier(state: RunState, most: int = _SHOWN) -> list[str]:
    """Why earlier attempts failed, one line for each of the last `most`, and where the newest one began."""
    numbers = [number for number in state.attempts if number < state.attempt]
    lines = [f"attempt {number} failed: {attempt_words(state, number)}" for number in numbers[-most:]]
    hidden = len(numbers) - len(lines)
    lines = [f"… {hidden} earlier attempts failed as well", *lines] if hidden else lines
    resumed = resumption(state)
    return [*lines, resumed.text] if resumed else lines


class Resumption(NamedTuple):
    """Whether the newest attempt resumed or started over."""

    text: str
    anew: bool
    """Whether it started over although an earlier attempt had got further."""


def resumption(state: RunState) -> Resumption | None:
    """Whether the newest attempt resumed an earlier one, judged by their steps; None if they do not show it.

    The first step above 0 counts, since a bar begins at 0 before it is set to a checkpoint's step. It may be a
    checkpoint's step if the earlier attempt got less than twice as far.
    """
    if state.attempt < 2:
        return None
    begun: dict[int, float] = {}
    reached: dict[int, float] = {}
    shown: dict[int, float] = {}
    for host in state.hosts:
        for (attempt, _), series in host.series.items():
            first, last = number(series.first.get("step")), number(series.latest.get("step"))
            if first is not None and last is not None and series.marks:
                shown[attempt] = min(first, shown.get(attempt, first))
                begun[attempt] = min(series.marks[0].step, begun.get(attempt, series.marks[0].step))
                reached[attempt] = max(last, reached.get(attempt, last))
    newest = state.attempt
    before = max((one for one in begun if one < newest), key=lambda one: reached[one], default=None)
    if newest not in begun or before is None:
        return None
    had = f"(attempt {before} had reached {reached[before]:.0f})"
    further, far = begun[newest] > begun[before], reached[before] >= 2 * max(begun[newest], 1.0)
    if further and not far:
        return Resumption(f"attempt {newest} continued from step {begun[newest]:.0f} {had}", anew=False)
    if far and not further:
        text = f"attempt {newest} started at step {shown[newest]:.0f} {had}; see launch.resume_args"
        return Resumption(text, anew=True)
    return None


def attempt_words(state: RunState, number: int) -> str:
    """Why an attempt failed, on one line."""
    cause = find(state, number)
    if cause is None:
        return "no cause was reported"
    words, failure = root_words(state, cause), cause.failure
    if failure.kind == "exception" and failure.message:
        words += f": {first_line(failure.message)}"
    return words


def first_line(message: str) -> str:
    """The first line of an error message, sanitised and cut to 300 characters."""
    line = clean(message.strip().split("\n")[0])
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def root_words(state: RunState, cause: RootCause) -> str:
    """Why an attempt failed, as one clause; if ranks had ended before, which ones the failed rank still waited for."""
    failure = cause.failure
    if not cause.gone:
        return cause_words(state, failure)
    stack = frames(failure.traceback)
    mine, call = own(stack), collective(stack)
    where = f"still waited in {call or mine.function} ({mine.place})" if mine else "still waited for others"
    return f"{_places(state, cause.gone)} had ended (exit code 0) while {_who(state, failure)} {clean(where)}"


def cause_words(state: RunState, failure: Failure) -> str:
    """The cause of one failure as a clause."""
    kind = failure.kind
    who = _who(state, failure)
    message = first_line(failure.message)
    if kind == "exception":
        return f"{who} raised {clean(failure.type or 'an exception')}"
    if kind in ("signal", "exit"):
        return f"{who} {end_words(failure.code, failure.grace)}" + (f": {message}" if message else "")
    if kind in ("host lost", "supervisor lost"):
        seen = f", last heartbeat {when(failure.last)}" if failure.last is not None else ""
        return f"{kind}: {who}{seen}" + (f" ({message})" if message else "")
    if kind == "launch" and failure.code is not None and failure.code < 0:
        named = message.partition(" ")[0]
        launcher = named if named in (*get_args(LauncherPart), "orted") else "the launcher"
        return f"{launcher} on {who} was ended by {code_words(failure.code)}"
    if not message:
        return f"{who}: {clean(kind or 'unknown cause')}"
    return message if message.startswith(who) else f"{who}: {message}"


def death_words(death: Death) -> str:
    """How a rank ended, such as `ended with exit code 3`, or that disttui killed it."""
    return end_words(death.get("code"), death.get("grace"))


def end_words(code: int | None, grace: float | None) -> str:
    """How a process ended; `grace` is the seconds that it had before disttui killed it, None if disttui did not."""
    if grace is None:
        return f"ended with {code_words(code)}"
    return "was killed by disttui" + (
        f": it did not end within {grace:g} s (launch.grace)" if grace else " immediately"
    )


def _detail(failure: Failure, launcher_tails: Mapping[str, str]) -> list[str]:
    if failure.kind == "exception":
        traceback = "\n".join(fold_traceback(failure.traceback))
        return ["", *set_apart((traceback.strip() and traceback) or clean(f"{failure.type}: {failure.message}"))]
    rest = failure.message.strip().split("\n")[1:]
    if failure.kind == "launch" and (failure.code or 0) >= 0 and not rest and launcher_tails.get(failure.host):
        rest = launcher_tails[failure.host].rstrip().split("\n")[-15:]
    return ["", *set_apart("\n".join(rest))] if rest else []


def _left(state: RunState) -> list[str]:
    ends = [(host.name, host.exit.get("held", {})) for host in state.hosts if host.exit]
    held = [f"! {name}: {words}" for name, what in ends for words in held_words(what)]
    return held + [
        f"! {host.name}: could not be ended: " + clean(", ".join(left_words(item) for item in host.story.left))
        for host in state.hosts
        if host.story.left
    ]


def left_words(one: LeftProcess) -> str:
    """A process that could not be ended, and the reason if known."""
    command, why = one.get("command"), one.get("why")
    return f"pid {one.get('pid')}" + (f" ({command[:60]})" if command else "") + (f": {why[:200]}" if why else "")


def held_words(held: Held) -> list[str]:
    """Lines on resources that are still held after a run's processes ended (`held` of exit.json)."""
    lines = []
    port = held.get("port")
    if port:
        who = f"pid {port['pid']} ({port.get('command', '')[:60]})" if port.get("pid") else "an unknown process"
        lines.append(f"{who} listens on the run's port {port['port']}")
    for one in held.get("gpu_memory", []):
        size = f"{gibibytes(one['bytes'])} of " if one.get("bytes") else ""
        lines.append(f"the driver still holds {size}GPU memory for pid {one['pid']}, which has ended")
    return [clean(line) for line in lines]


def _who(state: RunState, failure: Failure) -> str:
    host = state.hosts[failure.node].name
    return f"rank {failure.rank} on {host}" if failure.rank is not None else host


def _at_step(state: RunState) -> str:
    step = number(state.metrics.get("step"))
    return f" at step {step:.0f}" if step is not None else ""


LEADERS = frozenset({"attempt", "failed", "step", "join", "verdict", "stopping"})
"""Kinds of events that every host reports but that count only from the leader."""
_REASONS = {"failure": "another rank failed", "user": "asked to stop", "restart": "a new attempt follows"}


class Described(NamedTuple):
    """An event as text."""

    look: str
    """Its kind for display: ok, waiting, running, warning, slow, stopping, stopped, failed, lost, not seen."""
    text: str


def describe(state: RunState, node: int, event: Event) -> Described | None:
    """Describe an event of node `node`, which `state` already includes; None if it need not be shown."""
    if node != 0 and event["e"] in LEADERS:
        return None
    found = _described(state, node, event)
    return found and Described(found[0], clean(found[1]))


def _described(state: RunState, node: int, event: Event) -> tuple[str, str] | None:  # noqa: C901, PLR0911, PLR0912 one case for each kind
    match event["e"]:
        case "join":
            return "ok", f"{_name(state, event['node'])} has joined"
        case "attempt":
            begun = f"{amount(event['world_size'], 'rank')}, master {event['master']}:{event['port']}"
            return "waiting", f"attempt {event['attempt']} begins: {begun}"
        case "failed":
            return "failed", f"attempt {event['attempt']} failed: {attempt_words(state, event['attempt'])}"
        case "step":
            return "running", f"attempt {event['attempt']} is training"
        case "host":
            seen = event["state"]
            words = {"seen": "is reachable again", "lost": "is lost"}.get(
                seen, f"is unreachable from {_name(state, node)}"
            )
            return ("running" if seen == "seen" else seen), f"{_name(state, event['node'])} {words}"
        case "death":
            if event.get("code") == -15:  # mostly sent by the launcher or disttui after another rank failed
                return "stopped", f"rank {event.get('rank')} ended with the attempt"
            said = event.get("said", "").strip().split("\n")[0][:200]
            words = f"rank {event.get('rank')} {death_words(event)}" + (f": {said}" if said else "")
            return ("stopped" if stopped_by_user(state) else "failed"), words
        case "error":
            words = f"rank {event.get('rank')} raised {event.get('type')}: {first_line(event.get('message') or '')}"
            return ("stopped" if stopped_by_user(state) else "failed"), words
        case "stopping":
            reason = event.get("reason", "")
            return "stopping", f"stopping: {_REASONS.get(reason, reason)}{', immediately' if event.get('now') else ''}"
        case "stall":
            return ("running" if event.get("over") else "warning"), stall_words(event)
        case "straggler":
            words = straggler_sentence(event, state.host_of(event["rank"]))
            return ("running" if event.get("over") else "slow"), words
        case "alarm":
            over = event.get("over", False)
            return ("ok" if over else "warning"), f"{'over: ' if over else ''}{event['text'] or event.get('kind')}"
        case "note":
            return {"warning": "warning", "error": "failed"}.get(event.get("level", ""), "waiting"), event["text"]
        case "ungrouped":
            return ("ok" if event.get("over") else "warning"), ungrouped_words(event)
        case "verdict":
            ended = str(event.get("state"))
            return ended, f"the run {'was ' if ended in ('stopped', 'lost') else 'has '}{ended}"
        case (
            "supervisor" | "listen" | "waiting" | "dial" | "clock" | "launch" | "rank" | "group" | "launcher" | "left"
        ):  # fmt: skip
            return None
    raise Unhandled(event)


def _name(state: RunState, node: int) -> str:
    return state.hosts[node].name if 0 <= node < len(state.hosts) else f"host {node}"
