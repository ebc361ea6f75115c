"""Starting the run that the wizard has prepared. All of it blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.errors import DisttuiError, HostError
from runner.hosts.link import Link
from runner.hosts.survey import Surveyed, open_link
from runner.ids import new_run_id
from runner.runs.find import run_names
from runner.runs.history import keep
from runner.runs.launch import launch
from runner.transport import Connector
from tui.wizard.draft import Draft, Weighed


def start_run(
    draft: Draft,
    weighed: Weighed,
    links: Mapping[str, Link],
    connector: Connector,
    environ: Mapping[str, str],
    ssh_config: str | None,
) -> str:
    """Start the supervisors of all hosts and return the run's id. Raises DisttuiError; then nothing runs."""
    profile, plan = weighed.profile, weighed.plan
    hosts = []
    for name, host, facts in zip(draft.hosts, profile.hosts, weighed.facts, strict=True):
        if name not in links:
            raise HostError(host.name, "the link is gone", "Look again with r in step 2.")
        hosts.append(Surveyed(host, links[name], facts))
    run = new_run_id(profile.name, run_names(environ))
    # What a variable refers to is looked up before anything is kept of the run.
    for node in range(len(hosts)):
        profile.split_env(node, environ)
    before = draft.again
    source = str(draft.path) if draft.path else before.source if before else None
    known = keep(
        profile,
        [host.num_processes for host in plan.hosts],
        run,
        environ,
        source=source,
        resume_from=before.resume_from if before else None,
        sandbox=draft.sandbox,
        ssh_config=str(Path(ssh_config).absolute()) if ssh_config else None,
    )
    try:
        launch(
            profile=profile,
            plan=plan,
            hosts=hosts,
            run=run,
            environ=environ,
            tell=_quiet,
            reopen=lambda node: open_link(profile.hosts[node], connector),
            by=known.by,
            resume_from=known.resume_from,
        )
    except DisttuiError as error:
        known.failed(error.what)
        raise
    return run


def _quiet(node: int, kind: str, note: str) -> None:
    """The dashboard tells what happens from here on."""
