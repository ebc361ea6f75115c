"""Take up a run that somebody started elsewhere, from what one of its hosts tells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from runner.errors import HostError, InputError
from runner.node.serve.listing import RUN
from runner.profile import Host, Profile, parse
from runner.run.find import refuse_newer
from runner.run.history import KnownHost, KnownRun, keep
from runner.run.ids import pick
from runner.run.link import Link
from runner.run.remote import REACH, reach_hosts
from runner.text import clean
from runner.transport import Connector


def adopt(
    text: str,
    host: KnownHost,
    connector: Connector,
    environ: Mapping[str, str],
    *,
    profile: Profile | None = None,
    run_dir: str = "~/.disttui/runs",
    ssh_config: str | None = None,
) -> KnownRun:
    """Find a run on a host and keep what is needed to look at it and to stop it.

    Args:
        text: The run's id, or its beginning.
        profile: Whose hosts stand, in this order, for the run's; None: this user's ssh aliases of the same names.

    Raises:
        InputError: There is no such run, or the hosts do not fit.
        HostError: The host cannot be reached, or the run may not be read.
    """
    with reach_hosts({0: host}, connector) as reached:
        reached.refuse_none()
        link = reached.links[0]
        summary = _pick(text, summaries(link.request("list", run_dir=run_dir)), host.name)
        wanted, names, counts = summary["run"], summary["hosts"], summary["nproc"]
        written = _written(link, wanted, summary["node_rank"], run_dir)
    fitting = profile or _by_names(written, summary["node_rank"], host)
    if len(fitting.hosts) != len(names):
        raise InputError(
            f"the profile has {len(fitting.hosts)} hosts, {wanted} runs on {len(names)}: {clean(', '.join(names))}",
            "Give a profile with these hosts, in this order.",
        )
    started = summary.get("started")
    return keep(
        fitting.model_copy(update={"hosts": _named(fitting, names)}),
        counts,
        wanted,
        environ,
        written=written,
        run_dir=run_dir,
        started=float(started) if isinstance(started, int | float) else 0.0,
        by=clean(str(summary.get("by") or "?")),
        ssh_config=ssh_config,
        adopted=True,
    )


def _pick(text: str, found: Sequence[dict[str, Any]], host: str) -> dict[str, Any]:
    """The one summary that is meant, fit to be taken up. Raises InputError or HostError."""
    wanted = pick(text, list(dict.fromkeys(one["run"] for one in found)), host)
    summary = next(one for one in found if one["run"] == wanted)
    if "problem" in summary:
        raise HostError(host, clean(str(summary["problem"])), clean(str(summary.get("cure", ""))))
    refuse_newer(summary, f"{host}: {wanted}")
    names, counts = summary.get("hosts"), summary.get("nproc")
    fits = isinstance(names, list) and isinstance(counts, list) and 0 < len(names) == len(counts)
    numbers = [*(counts if isinstance(counts, list) else ()), summary.get("node_rank")]
    if not fits or not all(isinstance(number, int) for number in numbers):
        raise HostError(host, f"spec.json of {wanted} makes no sense", "Look at it on the host.")
    return {**summary, "hosts": [str(name) for name in names or ()]}


def summaries(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The summaries in an answer of the `list` op; what is none is left out."""
    runs = answer.get("runs")
    return [one for one in runs if isinstance(one, dict) and RUN.fullmatch(str(one.get("run")))] if runs else []


def _written(link: Link, run: str, node: int, run_dir: str) -> Mapping[str, Any]:
    """The profile in a run's spec.json."""
    pieces: list[memoryview] = []
    place = {"run": run, "node_rank": node, "run_dir": run_dir, "name": "spec.json", "offset": 0, "length": 4 << 20}
    asked = link.stream("read", lambda item: pieces.append(item[3]) if isinstance(item, tuple) else None, **place)
    try:
        asked.result(REACH)
        profile = json.loads(b"".join(pieces))["profile"]
    except (ValueError, KeyError, TypeError, FutureTimeout):
        profile = None
    if not isinstance(profile, dict):
        raise HostError(link.host, f"spec.json of {run} holds no profile", "Look at it on the host.")
    return profile


def _by_names(written: Mapping[str, Any], node: int, asked: KnownHost) -> Profile:
    """The run's own profile, with the host that was asked reached as it was asked."""
    profile = parse(json.dumps(written), "the run's profile")
    hosts = list(profile.hosts)
    if node < len(hosts) and hosts[node].host != asked.host:
        hosts[node] = hosts[node].model_copy(update={"host": asked.host, "user": asked.user, "port": asked.port})
    if any(host.host == "local" and rank != node for rank, host in enumerate(hosts)):
        raise InputError(
            "a host of this run is 'local', the machine that it was started from",
            "Give --profile with the run's hosts as you reach them, in its order.",
        )
    return profile.model_copy(update={"hosts": tuple(hosts)})


def _named(profile: Profile, names: Sequence[str]) -> tuple[Host, ...]:
    return tuple(host.model_copy(update={"name": clean(name)}) for host, name in zip(profile.hosts, names, strict=True))
