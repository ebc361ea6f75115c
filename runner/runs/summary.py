"""Summaries that `disttui.runner.protocol.summary` made on a host, typed, bounded and safe to show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict, cast, get_args

from disttui.runner.formatting import code_words, number
from disttui.runner.protocol.cause import Cause
from disttui.runner.protocol.events import State
from disttui.runner.protocol.files import Exit
from disttui.runner.protocol.leases import LATEST
from disttui.runner.protocol.limits import MOST_RANKS
from disttui.runner.protocol.metrics import NOT_FINITE
from disttui.runner.protocol.names import RUN
from disttui.runner.text import clean
from disttui.runner.untrusted.decode import decode
from disttui.runner.untrusted.records import bounded, each, mapping, text, whole

MOST_HOSTS = 1024
SANDBOX = "sandbox"
"""The note of a run whose hosts are simulated."""
SANDBOX_ENDED = "its sandbox has ended"
SUPERVISORS_DIED = "its supervisors died unexpectedly"
_MOST_RUNS = 10_000
_NAME, _SENTENCE = 255, 2000
"""Longest name, and longest problem, in characters."""
STATES = (
    "queued", "joining", "starting", "running", "stalled", "restarting", "stopping",
    "finished", "failed", "stopped", "lost", "unknown",
)  # fmt: skip
OUTCOME = re.compile(r"^(?:ended with exit code \d+|killed by [\w ]+)(?:: )?")
"""The prefix that a host puts before a program's own message; it repeats the exit code."""
_TEXTS = {
    "name": _NAME, "by": _NAME, "problem": _SENTENCE, "cure": _SENTENCE, "job": _NAME, "waits": _SENTENCE,
    "start": _NAME, "dropped": _SENTENCE,
}  # fmt: skip
_COUNTS = ("attempt", "step", "steps", "size", "disttui")
_NUMBERS = ("started", "began", "ended", "silent")


class Summary(TypedDict, total=False):
    """A run's summary as in docs/formats.md, "A run's summary". Missing and malformed values are absent."""

    run: str
    node_rank: int
    name: str
    hosts: list[str]
    nproc: list[int]
    state: str
    alive: bool
    started: float
    began: float
    """When its first event came; if it was queued, when its turn came."""
    ended: float
    attempt: int
    step: int
    steps: int
    loss: float | str
    """The loss of the first rank that has one; nan, inf or -inf if it is not finite."""
    silent: float
    """Seconds for which its first rank with metrics has written none, if that is suspiciously long."""
    by: str
    size: int
    disttui: int
    problem: str
    cure: str
    job: str
    """The run's Slurm job."""
    waits: str
    """What a queued run waits for; for a Slurm job, its reason."""
    start: str
    """When a queued job is expected to start."""
    cause: Cause
    """Why it failed on that host, with a shortened message."""
    dropped: str
    """Why a queued run ended before its turn; "" if it did not, or was stopped."""


class RunStatus(Summary, total=False):
    """A run with its last known state."""

    note: str
    """A note about that state."""


def summaries(answer: Any) -> tuple[Summary, ...]:
    """The summaries in an answer of the op `list`; malformed ones are left out."""
    return each(mapping(answer).get("runs"), summary_of, _MOST_RUNS)


def summary_of(fields: Mapping[str, Any]) -> Summary | None:
    """The summary in a JSON object; None if it names no run."""
    run = fields.get("run")
    if not isinstance(run, str) or not RUN.fullmatch(run):
        return None
    found: dict[str, Any] = {"run": run, "node_rank": whole(fields.get("node_rank"), MOST_HOSTS)}
    found |= {key: text(fields[key], most) for key, most in _TEXTS.items() if isinstance(fields.get(key), str)}
    found |= {key: whole(_integral(fields.get(key))) for key in _COUNTS}
    found |= {key: at if (at := number(fields.get(key))) is None or 0 <= at < LATEST else None for key in _NUMBERS}
    loss = fields.get("loss")
    known = number(loss)
    found["loss"] = loss if loss in NOT_FINITE else known if known is None else bounded(known)
    if fields.get("state") in STATES:
        found["state"] = fields["state"]
    if isinstance(fields.get("alive"), bool):
        found["alive"] = fields["alive"]
    if isinstance(cause := fields.get("cause"), Mapping):
        found["cause"] = {**decode(Cause, cause), "message": text(cause.get("message"), _SENTENCE)}
    found |= _hosts(fields.get("hosts"), fields.get("nproc"))
    return cast("Summary", {key: value for key, value in found.items() if value is not None})


def cause_text(summary: Mapping[str, object]) -> str:
    """Why a run failed, as `rank 3: ValueError: no such token`, or is lost; "" if that is not known."""
    if summary.get("state") == "lost" and not summary.get("cause"):
        note = str(summary.get("note") or "")
        return clean(note) if note not in ("", SANDBOX) else SUPERVISORS_DIED
    cause = decode(Cause, summary.get("cause") or {})
    kind, code, rank, node = cause.get("kind", ""), cause.get("code"), cause.get("rank"), cause.get("node")
    who = "" if rank is None else f"rank {rank}"
    names = summary.get("hosts")
    if kind in ("exit", "signal") and code is not None:
        who = f"{who} ended with {code_words(code)}".strip()
        kind = ""
        cause |= {"type": "", "message": OUTCOME.sub("", cause.get("message", ""))}
    elif (
        kind in ("host lost", "supervisor lost") and isinstance(names, list) and node is not None and node < len(names)
    ):
        who, kind = f"{kind}: {names[node]}", ""
    words = ": ".join(filter(None, (cause.get("type"), cause.get("message")))) or kind
    return clean(": ".join(filter(None, (who, words))))


def end_of(summary: Summary) -> Exit | None:
    """How a run ended on a host; None if it has not, as far as the host knows."""
    if summary.get("state") not in get_args(State) or summary.get("ended") is None:
        return None
    code = {"finished": 0, "stopped": 130}.get(summary["state"], 1)
    return decode(Exit, {**summary, "t": summary["ended"], "code": code})


def _hosts(names: Any, counts: Any) -> dict[str, Any]:
    """Names and process counts of the hosts, if their numbers agree."""
    if not isinstance(names, list) or not isinstance(counts, list) or not 0 < len(names) == len(counts) <= MOST_HOSTS:
        return {}
    shown = [text(name, _NAME) for name in names]
    processes = [whole(count, MOST_RANKS + 1) for count in counts]
    return {"hosts": shown, "nproc": processes} if all(shown) and None not in processes else {}


def _integral(value: Any) -> Any:
    """An integral float as an integer, since a script may count steps in floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
