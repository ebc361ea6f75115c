"""Finds runs by their ids or as groups: those that are known here, or one on a host."""

from __future__ import annotations

from collections.abc import Sequence

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.ids import short
from disttui.runner.profile import Profile, parse_host
from disttui.runner.protocol.names import RUN_DIR
from disttui.runner.runs import registry
from disttui.runner.runs.adopt import adopt as take_up
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.text import clean


def known_runs(viewer: Viewer) -> tuple[list[KnownRun], list[str]]:
    """Every run that is known here, newest first, and the problems of unreadable ones."""
    return registry.known_runs(viewer.environ)


def find_run(viewer: Viewer, text: str) -> KnownRun:
    """The run with this id or beginning of one, or the only one that another word of `select_runs` denotes.

    Raises:
        InputError: There is no such run, which lists similar ids, or there are several.
    """
    found = select_runs(viewer, [text])
    if len(found) == 1:
        return found[0]
    names = ", ".join(short(run.run) for run in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise InputError(f"{clean(text)[:100]} are {len(found)} runs: {names}{more}", "Give one of them.")


def select_runs(viewer: Viewer, words: Sequence[str], *, mine: bool = False) -> list[KnownRun]:
    """The runs that are known here and that words denote, each once, in the order of the words.

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
            raise InputError("none of these runs is yours" if words else "no run of yours is known here")
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
        return [registry.find_run(word, viewer.environ)]  # raises, with what was meant
    runs = [registry.find_run(run, viewer.environ) for run in swept if run in known]
    if not runs:
        raise InputError(f"no run of the sweep {clean(word)[:100]} is known here")
    return runs


def sweep_runs(viewer: Viewer, name: str) -> list[str]:
    """The ids of the runs of a sweep that was started here, by its name or the beginning of it. Raises InputError."""
    from disttui.runner.api.sweeping import load_sweep  # slow to import

    return [one.run for one in load_sweep(viewer.environ, name).runs]


def _group(viewer: Viewer, word: str) -> list[KnownRun]:
    if word not in ("@latest", "@failed"):
        raise InputError(f"{clean(word)[:100]!r}: expected @latest or @failed")
    runs = known_runs(viewer)[0]
    chosen = runs[:1] if word == "@latest" else [run for run in runs if run.summary()["state"] in ("failed", "lost")]
    if not chosen:
        raise InputError("no run is known here" if word == "@latest" else "no run that failed is known here")
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
    """Find a run on a host, started by any user, and store what is needed to view and stop it.

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

    def agree(asked: str, run: str, others: Sequence[str]) -> None:
        answer = trust_hosts or viewer.questions.trust_hosts(asked, run, others)
        if not answer:
            named = f"{asked} says that {short(run)} also runs on {', '.join(others)}"
            cure = "If they are hosts of yours, add --trust-hosts, or --profile with the run's hosts in its order."
            raise InputError(f"{named}: not reached{' without a yes' if answer is None else ''}", cure)

    run = take_up(
        text,
        KnownHost.of(one, one.name),
        viewer.connector(),
        viewer.environ,
        agree,
        profile=profile,
        run_dir=run_dir or (profile.launch.run_dir if profile else RUN_DIR),
        ssh_config=viewer.ssh_config,
    )
    registry.mask_secrets(run, viewer.environ)
    return run
