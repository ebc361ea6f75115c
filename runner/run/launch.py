"""Start a run: the leader first, then all others, and nothing at all if one of them cannot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from runner import __version__
from runner.errors import DisttuiError
from runner.plan import Plan
from runner.profile import Profile
from runner.run.survey import HostsError, Surveyed, Tell

KILL_PATIENCE = 10.0
"""Seconds for hosts to confirm that they end what was started."""


def new_run_id(name: str) -> str:
    """A short id that begins with the profile's name."""
    return f"{name}-{secrets.token_hex(2)}"


def launch(
    *,
    profile: Profile,
    plan: Plan,
    hosts: Sequence[Surveyed],
    run: str,
    environ: Mapping[str, str],
    tell: Tell,
    by: str = "",
) -> None:
    """Start the supervisors of all hosts.

    Args:
        environ: Where `${env:NAME}` references are looked up.
        by: Who starts it, `alice@laptop`.

    Raises:
        DisttuiError: A host could not start; those that had started are stopped before this is raised.
    """
    key = secrets.token_hex(32)
    # Resolved before anything is started: a missing variable must not leave half a gang.
    resolved = [profile.split_env(node, environ)[1] for node in range(len(hosts))]
    leader: Mapping[str, Any] | None = None
    begun = {"by": by, "started": time.time(), "version": __version__}

    def start(node: int) -> Mapping[str, Any]:
        tell(node, "starting", "")
        spec = {**plan.spec(node, run), **begun, "leader": leader}
        answer: Mapping[str, Any] = hosts[node].link.request(
            "start", spec=spec, secrets={"key": key, "env": resolved[node]}
        )
        tell(node, "started", "")
        return answer

    def attempt(node: int) -> DisttuiError | None:
        try:
            start(node)
        except DisttuiError as error:
            tell(node, "failed", error.what)
            return error
        return None

    leader = start(0)["gang"]
    followers = range(1, len(hosts))
    if not followers:
        return
    with ThreadPoolExecutor(max_workers=len(followers), thread_name_prefix="start") as pool:
        errors = [error for error in pool.map(attempt, followers) if error]
    if errors:
        _kill(hosts, {"run": run, "run_dir": profile.launch.run_dir})
        raise errors[0] if len(errors) == 1 else HostsError(errors)


def _kill(hosts: Sequence[Surveyed], request: Mapping[str, Any]) -> None:
    """End what was started, and wait until every host that can has heard of it: its channel is closed next."""
    answers = [
        host.link.submit("stop", **request, node_rank=node, now=True, reason="failure")
        for node, host in enumerate(hosts)
    ]
    wait(answers, KILL_PATIENCE)
