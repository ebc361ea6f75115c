"""Leases of a host as a viewer reads them (docs/formats.md, "Leases"): checked, bounded, safe to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.bounded import MOST, each, text, whole
from runner.formatting import number, plural, span
from runner.protocol.leases import Kind, Lease, State, Wish, in_the_way, person, short

MOST_LEASES = 1000
"""Of one host: each waiting one is compared with all others."""
_MOST_GPUS, _GPUS = 64, 1024
_SHORT, _LONG = 100, 200
_LATEST = 1e11


def read_leases(items: Any) -> tuple[Lease, ...]:
    """The leases in a host's answer; what is no lease is left out."""
    return each(items, _lease, MOST_LEASES)


def blocking(leases: Sequence[Lease], gpus: Sequence[int], uid: int, by: str, run: str = "") -> tuple[Lease, ...]:
    """The leases that keep a run of this user from using these GPUs, none of them: the host's CPUs."""
    return tuple(in_the_way(Wish("run", run, list(gpus), False, uid, person(by)), leases))


def who_has(lease: Lease, now: float) -> str:
    """Whose a lease is and how long it lasts: `alice's llama-7f3a, 41 % done, about 3 h`."""
    user = lease["user"]
    if lease["state"] == "waiting":
        return f"{user}'s {short(lease['run'])}, which is in line"
    if lease["kind"] == "run":
        return f"{user}'s {short(lease['run'])}{progress(lease, now)}"
    until = lease["until"]
    end = "with no end" if until is None else f"for {span(max(0.0, until - now))} more"
    return f"{user}, by hand, {end}" + (f": {lease['note']}" if lease["note"] else "")


def progress(lease: Lease, now: float) -> str:
    """`, 41 % done, about 3 h`, as far as the run's owner has written it."""
    step, steps = lease["step"], lease["steps"]
    if not step or not steps or step > steps:
        return ""
    left = max(0.0, now - lease["since"]) * (steps - step) / step
    return f", {100 * step // steps} % done, about {span(left)}"


def what_of(lease: Lease) -> str:
    """`GPUs 0, 1`, `the whole host` or `CPUs`."""
    gpus = lease["gpus"]
    if gpus is None:
        return "the whole host"
    return f"{plural(len(gpus), 'GPU').split(' ', 1)[1]} {', '.join(map(str, gpus))}" if gpus else "CPUs"


def _lease(one: Mapping[str, object]) -> Lease | None:
    gpus, since, order, uid = one.get("gpus"), number(one.get("since")), number(one.get("order")), whole(one.get("uid"))
    listed = (
        [index for item in gpus[:_MOST_GPUS] if (index := whole(item, _GPUS)) is not None]
        if isinstance(gpus, list)
        else None
    )
    until = number(one.get("until"))
    priority = one.get("priority")
    usable = (
        since is not None and order is not None and uid is not None and 0 <= since < _LATEST and 0 <= order < _LATEST
    )
    if not usable or (until is not None and not 0 <= until < _LATEST):
        return None
    assert since is not None and order is not None and uid is not None
    kind: Kind = "hand" if one.get("kind") == "hand" else "run"
    state: State = "waiting" if one.get("state") == "waiting" else "held"
    return Lease(
        kind=kind,
        state=state,
        run=text(one.get("run"), _SHORT),
        node_rank=whole(one.get("node_rank"), 1 << 16) or 0,
        gpus=listed,
        alone=one.get("alone") is True,
        since=since,
        until=until,
        note=text(one.get("note"), _LONG),
        by=text(one.get("by"), _SHORT),
        priority=priority
        if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= 100
        else 0,
        order=order,
        pid=whole(one.get("pid"), 1 << 31) or 0,
        start_time=whole(one.get("start_time"), MOST),
        pid_namespace=text(one.get("pid_namespace"), _SHORT),
        boot_id=text(one.get("boot_id"), _SHORT),
        step=whole(one.get("step")),
        steps=whole(one.get("steps")),
        user=text(one.get("user"), _SHORT) or "somebody",
        uid=uid,
    )
