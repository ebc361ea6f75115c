"""Leases of a host as a viewer reads them (docs/formats.md, "Leases"): checked, bounded, safe to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.formatting import number
from runner.protocol.leases import LATEST, PRIORITY, Kind, Lease, State, Wish, in_the_way, own_leases, person
from runner.untrusted.bounded import MOST, each, text, whole

MOST_LEASES = 1000
"""Of one host: each waiting one is compared with all others."""
_MOST_GPUS, _GPUS = 64, 1024
_SHORT, _LONG = 100, 200


def read_leases(items: Any) -> tuple[Lease, ...]:
    """The leases in a host's answer; what is no lease is left out."""
    return each(items, _lease, MOST_LEASES)


def blocking(leases: Sequence[Lease], gpus: Sequence[int], uid: int, by: str, run: str = "") -> tuple[Lease, ...]:
    """The leases that keep a run of this user from using these GPUs, none of them: the host's CPUs."""
    return tuple(in_the_way(Wish("run", run, list(gpus), False, uid, person(by)), leases))


def own_gpus(leases: Sequence[Lease], gpus: Sequence[int], uid: int, by: str) -> tuple[int, ...]:
    """Those of a host's GPUs that this user has in leases."""
    own = own_leases(Wish("run", "", None, False, uid, person(by)), leases)
    return tuple(index for index in gpus if any(one["gpus"] is None or index in one["gpus"] for one in own))


def _lease(one: Mapping[str, object]) -> Lease | None:
    gpus, since, order, uid = one.get("gpus"), number(one.get("since")), number(one.get("order")), whole(one.get("uid"))
    listed = (
        [index for item in gpus[:_MOST_GPUS] if (index := whole(item, _GPUS)) is not None]
        if isinstance(gpus, list)
        else None
    )
    until = number(one.get("until"))
    priority = one.get("priority")
    usable = since is not None and order is not None and uid is not None and 0 <= since < LATEST and 0 <= order < LATEST
    if not usable or (until is not None and not 0 <= until < LATEST):
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
        if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= PRIORITY
        else 0,
        order=order,
        pid=whole(one.get("pid"), 1 << 31) or 0,
        start_time=whole(one.get("start_time"), MOST),
        pid_namespace=text(one.get("pid_namespace"), _SHORT),
        boot_id=text(one.get("boot_id"), _SHORT),
        quota=whole(one.get("quota")),
        warden_pid=whole(one.get("warden_pid"), 1 << 31),
        warden_start_time=whole(one.get("warden_start_time"), MOST),
        step=whole(one.get("step")),
        steps=whole(one.get("steps")),
        user=text(one.get("user"), _SHORT) or "somebody",
        uid=uid,
    )
