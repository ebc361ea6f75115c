"""Adopts a run that was started elsewhere, from the answer of one of its hosts.

Only the names of the run's hosts and their processes are taken from that answer. Nothing of it is executed, and no
host that it names is contacted before the user has agreed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from itertools import repeat

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.link import Item, Link
from disttui.runner.ids import pick, short
from disttui.runner.paths import inside
from disttui.runner.profile import Profile
from disttui.runner.profile.fields import split_host
from disttui.runner.protocol.names import RUN_DIR
from disttui.runner.runs.registry import KnownHost, KnownRun, load_run, refuse_newer, remember
from disttui.runner.runs.remote import REACH, reach_hosts
from disttui.runner.runs.store import mirrors_folder
from disttui.runner.runs.summary import Summary, summaries
from disttui.runner.transport import Connector
from disttui.runner.untrusted.records import json_object

Agree = Callable[[str, str, Sequence[str]], None]
"""Takes a host, the run and the other hosts that it names. Raises InputError where they must not be contacted."""

_SPEC = 4 << 20
_NAME = re.compile(r"[\w\[:][\w.:%+=~^@\[\]-]*")
"""The form of host names in a profile."""


def adopt(
    text: str,
    host: KnownHost,
    connector: Connector,
    environ: Mapping[str, str],
    agree: Agree,
    *,
    profile: Profile | None = None,
    run_dir: str = RUN_DIR,
    ssh_config: str | None = None,
) -> KnownRun:
    """Find a run on a host and store what is needed to view and stop it; a run that was started here is left as it is.

    Args:
        text: The run's id, or its beginning.
        agree: Called before anything is stored where the host names further hosts and `profile` is None.
        profile: Its hosts, in this order, are those of the run; None: this user's ssh aliases of the same names.

    Raises:
        InputError: There is no such run, the hosts do not fit, or they must not be contacted.
        HostError: The host cannot be reached, or the run may not be read.
    """
    with reach_hosts({0: host}, connector) as reached:
        reached.refuse_none()
        link = reached.links[0]
        summary = _pick(text, summaries(link.request("list", run_dir=run_dir)), host.name)
        run, node, names, counts = summary["run"], summary["node_rank"], summary["hosts"], summary["nproc"]
        before = None
        with suppress(InputError):  # it is not stored here, or its record is damaged
            before = load_run(inside(mirrors_folder(environ), run))
        if before and not before.adopted:
            return before
        written = _written(link, run, node, run_dir)
    if summary.get("job"):  # one login node of Slurm is the way to all of its nodes
        hosts = tuple(map(KnownHost.of, repeat(host), names, counts))
    else:
        hosts = _of_profile(profile, run, names, counts) if profile else _of_names(host, node, names, counts)
    asked = host.as_host().endpoint
    others = [one.name for rank, one in enumerate(hosts) if rank != node and one.as_host().endpoint != asked]
    if others and not profile and not (before and before.hosts == hosts):
        agree(host.name, run, others)
    by, started = summary.get("by") or "?", summary.get("started", 0.0)
    folder = inside(mirrors_folder(environ), run)
    return remember(KnownRun(run, folder, hosts, written, run_dir, started, by, ssh_config=ssh_config, adopted=True))


def _pick(text: str, found: Sequence[Summary], host: str) -> Summary:
    """The summary of the run with this id or beginning, checked for adoption. Raises InputError or HostError."""
    wanted = pick(text, list(dict.fromkeys(one["run"] for one in found)), host)
    summary = next(one for one in found if one["run"] == wanted)
    if "problem" in summary:
        raise HostError(host, summary["problem"], summary.get("cure", ""))
    refuse_newer(summary, f"{host}: {wanted}")
    if "hosts" not in summary or summary.get("node_rank", len(summary["hosts"])) >= len(summary["hosts"]):
        raise HostError(host, f"spec.json of {wanted} does not name its hosts", "Inspect it on the host.")
    names = summary["hosts"]
    if strange := next((name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1), None):
        raise HostError(
            host, f"it says that {wanted} has a host {strange!r}: no name, or two of it", "Do not trust it."
        )
    return summary


def _of_profile(profile: Profile, run: str, names: Sequence[str], counts: Sequence[int]) -> tuple[KnownHost, ...]:
    """The hosts with the addresses of the user's profile."""
    if len(profile.hosts) != len(names):
        raise InputError(
            f"the profile has {len(profile.hosts)} hosts, {short(run)} runs on {len(names)}: {', '.join(names)}",
            "Give a profile with these hosts, in this order.",
        )
    return tuple(map(KnownHost.of, profile.hosts, names, counts))


def _of_names(asked: KnownHost, node: int, names: Sequence[str], counts: Sequence[int]) -> tuple[KnownHost, ...]:
    """The hosts as ssh aliases of these names; the asked host keeps the address it was asked at."""
    hosts = [
        KnownHost.of(asked, name, count) if rank == node else KnownHost(name, _address(asked.name, name), nproc=count)
        for rank, (name, count) in enumerate(zip(names, counts, strict=True))
    ]
    if any(one.host == "local" and rank != node for rank, one in enumerate(hosts)):
        raise InputError(
            "a host of this run is 'local', the machine that it was started from",
            "Give --profile with the run's hosts as you reach them, in its order.",
        )
    return tuple(hosts)


def _address(asked: str, name: str) -> str:
    """The host in a name like bob@box:2222: login and port are never taken from another host's answer."""
    try:
        host = split_host(name)[1]
        KnownHost(name, host).as_host()
    except (PydanticCustomError, ValidationError):
        cure = "Give --profile with the run's hosts as you reach them, in its order."
        raise HostError(
            asked, f"it says that the run has a host {name[:100]!r}, which is no name of one", cure
        ) from None
    return host


def _written(link: Link, run: str, node: int, run_dir: str) -> Mapping[str, object]:
    """The profile in a run's spec.json, for display only; empty if missing."""
    data = bytearray()

    def take(item: Item) -> None:
        if isinstance(item, tuple) and len(data) <= _SPEC:
            data.extend(item[3])

    place = {"run": run, "node_rank": node, "run_dir": run_dir, "name": "spec.json", "offset": 0, "length": _SPEC}
    try:
        link.stream("read", take, **place).result(REACH)
    except (HostError, FutureTimeout):
        return {}
    profile = (json_object(bytes(data)) or {}).get("profile")
    return profile if isinstance(profile, dict) else {}
