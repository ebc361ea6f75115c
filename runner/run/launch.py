"""Start a run on all hosts at once, and nothing at all if one of them cannot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from runner import __version__
from runner.errors import DisttuiError, HostError
from runner.plan import Plan
from runner.profile import Profile
from runner.run.survey import HostsError, Surveyed, Tell

LEAD_PATIENCE = 30.0
"""Seconds for followers to hear where the leader is."""
KILL_PATIENCE = 10.0
"""Seconds for hosts to confirm that they end what was started."""


def launch(
    *,
    profile: Profile,
    plan: Plan,
    hosts: Sequence[Surveyed],
    run: str,
    environ: Mapping[str, str],
    tell: Tell,
    by: str = "",
    resume_from: str | None = None,
) -> None:
    """Start the supervisors of all hosts.

    Args:
        environ: Where `${env:NAME}` references are looked up.
        by: Who starts it, `alice@laptop`.
        resume_from: The folder on the hosts with the checkpoints of another run, to go on from.

    Raises:
        DisttuiError: A host could not start; those that had started are stopped before this is raised.
    """
    key = secrets.token_hex(32)
    # Resolved before anything is started: a missing variable must not leave half a gang.
    resolved = [profile.split_env(node, environ)[1] for node in range(len(hosts))]
    begun = {"by": by, "started": time.time(), "version": __version__, "resume_from": resume_from}
    request = {"run": run, "run_dir": profile.launch.run_dir}

    def start(node: int) -> Mapping[str, Any] | DisttuiError:
        tell(node, "starting", "")
        secret = {"key": key, "env": resolved[node]}
        try:
            answer: Mapping[str, Any] = hosts[node].link.request(
                "start", spec={**plan.spec(node, run), **begun}, secrets=secret
            )
        except DisttuiError as error:
            tell(node, "failed", error.what)
            return error
        tell(node, "started", "")
        return answer

    # All at once, so that every host's torch is importing while the others still start.
    with ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="start") as pool:
        answers = list(pool.map(start, range(len(hosts))))
    errors = [answer for answer in answers if isinstance(answer, DisttuiError)]
    first = answers[0]
    if not errors and not isinstance(first, DisttuiError) and first["gang"]:
        errors = _lead(hosts, request, first["gang"])
    if errors:
        _kill(hosts, request)
        raise errors[0] if len(errors) == 1 else HostsError(errors)


def _lead(hosts: Sequence[Surveyed], request: Mapping[str, Any], leader: Mapping[str, Any]) -> list[DisttuiError]:
    """Tell the followers where the leader takes them; returns what went wrong."""
    told = [
        host.link.submit("lead", **request, node_rank=node, leader=leader) for node, host in enumerate(hosts) if node
    ]
    wait(told, LEAD_PATIENCE)
    late = HostError("node 0", "some hosts could not be told where it is", "See what those hosts are busy with.")
    errors = [answer.exception() if answer.done() else late for answer in told]
    return [error for error in errors if isinstance(error, DisttuiError)]


def _kill(hosts: Sequence[Surveyed], request: Mapping[str, Any]) -> None:
    """End what was started, and wait until every host that can has heard of it: its channel is closed next."""
    answers = [
        host.link.submit("stop", **request, node_rank=node, now=True, reason="failure")
        for node, host in enumerate(hosts)
    ]
    wait(answers, KILL_PATIENCE)
