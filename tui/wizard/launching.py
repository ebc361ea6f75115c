"""Starts the run that the wizard has prepared. All functions block."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from runner.api.preparing import Planned, Prepared, launch
from runner.api.viewer import Viewer
from runner.errors import HostError
from runner.hosts.link import Link
from tui.wizard.draft import Draft


def start_run(viewer: Viewer, draft: Draft, planned: Planned, links: Mapping[str, Link]) -> str:
    """Start the supervisors of all hosts and return the run's id. Raises DisttuiError; then nothing runs."""
    # Of a job of Slurm the draft has the login node, and the plan a host for each node.
    for name, host in zip(draft.hosts, planned.profile.hosts, strict=planned.plan.batch is None):
        if name not in links:
            raise HostError(host.name, "the link is gone", "Look again with r in step 2.")
    prepared = Prepared(planned, tuple(links[name] for name in draft.hosts))
    before = draft.again
    source = str(draft.path) if draft.path else before.source if before else None
    resume_from = before.resume_from if before else None
    return launch(
        viewer, prepared, source=source, resume_from=resume_from, ssh_config=draft.ssh_config, command=sys.argv
    ).run
