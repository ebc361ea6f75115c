"""Finds a run by its id: one that is known here, or one on a host."""

from __future__ import annotations

from collections.abc import Sequence

from runner.api.viewer import Viewer
from runner.errors import InputError
from runner.ids import short
from runner.profile import Profile, parse_host
from runner.protocol.names import RUN_DIR
from runner.runs import registry
from runner.runs.adopt import adopt as take_up
from runner.runs.registry import KnownHost, KnownRun


def known_runs(viewer: Viewer) -> tuple[list[KnownRun], list[str]]:
    """Every run that is known here, newest first, and the problems of unreadable ones."""
    return registry.known_runs(viewer.environ)


def find_run(viewer: Viewer, text: str) -> KnownRun:
    """The run with this id or beginning of one. Raises InputError, which lists similar ids."""
    return registry.find_run(text, viewer.environ)


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
        KnownHost(one.name, one.host, one.user, one.port),
        viewer.connector(),
        viewer.environ,
        agree,
        profile=profile,
        run_dir=run_dir or (profile.launch.run_dir if profile else RUN_DIR),
        ssh_config=viewer.ssh_config,
    )
    registry.mask_secrets(run, viewer.environ)
    return run
