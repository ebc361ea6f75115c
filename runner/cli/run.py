"""The command that runs a profile."""

from __future__ import annotations

import click

from runner.cli.options import (
    AS_LINES,
    DETACH,
    IGNORE_LEASES,
    PRIORITY,
    WHEN_FREE,
    example,
    load_profile,
    profile_options,
    ssh_options,
)
from runner.cli.running import Sharing, run_profile


@click.command(epilog=example("disttui run 2node --sandbox", "disttui run mine.yaml --set job.args='[--lr, \"1e-3\"]'"))
@profile_options
@DETACH
@IGNORE_LEASES
@WHEN_FREE
@PRIORITY
@AS_LINES
@ssh_options
def run(
    profile: str,
    overrides: tuple[str, ...],
    *,
    sandbox: bool,
    trust_profile: bool,
    detach: bool,
    ignore_leases: bool,
    when_free: bool,
    priority: int,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Run PROFILE on all its hosts until it has trained.

    PROFILE is a file, or the name of a saved profile. Standard output carries the ranks' lines, standard error
    disttui's own words. Ctrl-C stops the whole gang, a second Ctrl-C kills it; when the terminal is closed the run
    goes on.
    """
    from runner.profile.library import find

    path = str(find(profile))
    code = run_profile(
        load_profile(path, overrides, trusted=trust_profile),
        path,
        sandbox=sandbox,
        ssh_config=ssh_config,
        accept_new=accept_new_host_keys,
        as_json=as_json,
        detach=detach,
        sharing=Sharing(ignore_leases, when_free, priority),
    )
    raise SystemExit(code)
