"""Finds runs by their ids or as groups: those that are known here, or one on a host.

Of a run that a host names only the names of its hosts and their processes are taken. Nothing of it is executed, and no
host that it names is contacted before the user has agreed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from itertools import repeat

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import HostError, InputError
from disttui.runner.formatting import amount
from disttui.runner.hosts.link import Item, Link
from disttui.runner.ids import pick, short
from disttui.runner.paths import inside
from disttui.runner.profile.fields import split_host
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import parse_host
from disttui.runner.protocol.names import RUN_DIR
from disttui.runner.runs import registry
from disttui.runner.runs.registry import KnownHost, KnownRun, load_run, refuse_newer, remember
from disttui.runner.runs.remote import REACH, reach_hosts
from disttui.runner.runs.store import mirrors_folder
from disttui.runner.runs.summary import Summary, summaries
from disttui.runner.text import clean
from disttui.runner.untrusted.records import json_object, mapping

_SPEC = 4 << 20
_NAME = re.compile(r"[\w\[:][\w.:%+=~^@\[\]-]*")
"""Pattern of host names in a profile."""


def known_runs(viewer: Viewer) -> tuple[list[KnownRun], list[str]]:
    """All known runs, newest first, and problems of unreadable ones."""
    return registry.known_runs(viewer.environ)


def find_run(viewer: Viewer, text: str) -> KnownRun:
    """The run with this id or prefix, or the only one that `select_runs` finds.

    Raises:
        InputError: There is no such run, which lists similar ids, or there are several.
    """
    found = select_runs(viewer, [text])
    if len(found) == 1:
        return found[0]
    names = ", ".join(short(run.run) for run in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise InputError(f"{clean(text)[:100]} matches {len(found)} runs: {names}{more}", "Name one of them.")


def select_runs(viewer: Viewer, words: Sequence[str], *, mine: bool = False) -> list[KnownRun]:
    """Known runs selected by words, each once, in their order.

    Args:
        words: Ids or beginnings of such, names of sweeps, `@latest`, or `@failed`.
        mine: Only runs that this user has started; without words, all of these.

    Raises:
        InputError: A word denotes no run.
    """
    known = [run for word in words for run in _denoted(viewer, word)]
    if mine:
        me = registry.whoami().partition("@")[0]
        known = [run for run in (known if words else known_runs(viewer)[0]) if run.by.partition("@")[0] == me]
        if not known:
            raise InputError("none of these runs is yours" if words else "no runs of yours are known here")
    for run in known:
        registry.mask_secrets(run, viewer.environ)
    return list({run.run: run for run in known}.values())


def _denoted(viewer: Viewer, word: str) -> list[KnownRun]:
    if word.startswith("@"):
        return _group(viewer, word)
    known = registry.run_names(viewer.environ)
    if any(name.startswith(word) for name in known):
        return [registry.find_run(word, viewer.environ)]
    try:
        swept = sweep_runs(viewer, word) if word else []
    except InputError:
        return [registry.find_run(word, viewer.environ)]  # raises InputError with similar ids
    runs = [registry.find_run(run, viewer.environ) for run in swept if run in known]
    if not runs:
        raise InputError(f"no runs of the sweep {clean(word)[:100]} are known here")
    return runs


def sweep_runs(viewer: Viewer, name: str) -> list[str]:
    """The ids of the runs of a sweep started here, by its name or a prefix. Raises InputError."""
    from disttui.runner.api.sweeping import load_sweep  # slow to import

    return [one.run for one in load_sweep(viewer.environ, name).runs]


def _group(viewer: Viewer, word: str) -> list[KnownRun]:
    if word not in ("@latest", "@failed"):
        raise InputError(f"{clean(word)[:100]!r}: expected @latest or @failed")
    runs = known_runs(viewer)[0]
    chosen = runs[:1] if word == "@latest" else [run for run in runs if run.summary()["state"] in ("failed", "lost")]
    if not chosen:
        raise InputError("no runs are known here" if word == "@latest" else "no failed runs are known here")
    return chosen


def adopt(
    viewer: Viewer,
    text: str,
    host: str,
    *,
    profile: Profile | None = None,
    run_dir: str | None = None,
    trust_hosts: bool = False,
) -> KnownRun:
    """Find any user's run on a host, to view and stop it.

    Args:
        text: The run's id, or its beginning.
        host: An ssh alias, user@host:port, or `local`.
        profile: Its hosts, in this order, are those of the run; None: the user's ssh aliases of the same names.
        run_dir: The folder of runs there; None: that of the profile, or the default.
        trust_hosts: Log in to the other hosts that the host names without asking.

    Raises:
        InputError: There is no such run, the hosts do not fit, or they must not be contacted.
        HostError: The host cannot be reached, or the run may not be read.
    """
    one = parse_host(host)
    known = KnownHost.of(one, one.name)
    run_dir = run_dir or (profile.launch.run_dir if profile else RUN_DIR)
    with reach_hosts({0: known}, viewer.connector()) as reached:
        reached.refuse_none()
        link = reached.links[0]
        summary = _pick(text, summaries(link.request("list", run_dir=run_dir)), one.name)
        run, node, names, counts = summary["run"], summary["node_rank"], summary["hosts"], summary["nproc"]
        folder = inside(mirrors_folder(viewer.environ), run)
        before = None
        with suppress(InputError):  # the run is not stored here, or its record is damaged
            before = load_run(folder)
        written = {} if before and not before.adopted else _written(link, run, node, run_dir)
    if before and not before.adopted:
        registry.mask_secrets(before, viewer.environ)
        return before
    if summary.get("job"):  # all nodes of a Slurm job are reached through its login node
        hosts = tuple(map(KnownHost.of, repeat(known), names, counts))
    else:
        hosts = _of_profile(profile, run, names, counts) if profile else _of_names(known, node, names, counts)
    others = [host.name for rank, host in enumerate(hosts) if rank != node and host.as_host().endpoint != one.endpoint]
    if others and not (profile or trust_hosts or (before and before.hosts == hosts)):
        answer = viewer.questions.trust_hosts(one.name, run, others)
        if not answer:
            named = f"{one.name} says that {short(run)} also runs on {', '.join(others)}"
            cure = "If these hosts are yours, add --trust-hosts, or --profile with the run's hosts in its order."
            raise InputError(f"{named}; not contacted{' until you confirm' if answer is None else ''}", cure)
    by, started, config = summary.get("by") or "?", summary.get("started", 0.0), viewer.ssh_config
    made = remember(KnownRun(run, folder, hosts, written, run_dir, started, by, ssh_config=config, adopted=True))
    registry.mask_secrets(made, viewer.environ)
    return made


def _pick(text: str, found: Sequence[Summary], host: str) -> Summary:
    """The summary of the run with this id or prefix, checked for adoption. Raises InputError or HostError."""
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
            host,
            f"the host {strange!r} that it reports for {wanted} is invalid or a duplicate",
            "Do not trust this answer.",
        )
    return summary


def _of_profile(profile: Profile, run: str, names: Sequence[str], counts: Sequence[int]) -> tuple[KnownHost, ...]:
    """A run's hosts with the addresses of the user's profile. Raises InputError if their numbers differ."""
    if len(profile.hosts) != len(names):
        what = (
            f"the profile has {amount(len(profile.hosts), 'host')}, {short(run)} has {len(names)}: {', '.join(names)}"
        )
        raise InputError(what, "Give a profile with these hosts, in this order.")
    return tuple(map(KnownHost.of, profile.hosts, names, counts))


def _of_names(asked: KnownHost, node: int, names: Sequence[str], counts: Sequence[int]) -> tuple[KnownHost, ...]:
    """A run's hosts, with their names as ssh aliases; the asked host keeps its address. Raises InputError."""
    hosts = [
        KnownHost.of(asked, name, count) if rank == node else KnownHost(name, _address(asked.name, name), nproc=count)
        for rank, (name, count) in enumerate(zip(names, counts, strict=True))
    ]
    if any(one.host == "local" and rank != node for rank, one in enumerate(hosts)):
        raise InputError(
            "one host of this run is the machine that started it ('local')",
            "Give --profile with the run's hosts as you reach them, in its order.",
        )
    return tuple(hosts)


def _address(asked: str, name: str) -> str:
    """The host in a name such as bob@box:2222. Ignores login and port, which come from a host. Raises HostError."""
    try:
        host = split_host(name)[1]
        KnownHost(name, host).as_host()
    except (PydanticCustomError, ValidationError):
        cure = "Give --profile with the run's hosts as you reach them, in its order."
        raise HostError(asked, f"it lists {name[:100]!r} as a host of the run: not a host name", cure) from None
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
    return mapping((json_object(bytes(data)) or {}).get("profile"))
