"""The command that runs a run again."""

from __future__ import annotations

from typing import Any

import click

from runner.cli.options import AS_LINES, DETACH, IGNORE_LEASES, OVERRIDES, PRIORITY, WHEN_FREE, example
from runner.cli.run_selector import existing, finding, run_options
from runner.cli.running import Sharing, run_profile


@click.command(epilog=example("disttui rerun 2node-7f3a --resume", "disttui rerun 2node-7f3a --set launch.restarts=2"))
@OVERRIDES
@click.option("--resume", is_flag=True, help="Go on from its newest checkpoint.")
@DETACH
@IGNORE_LEASES
@WHEN_FREE
@PRIORITY
@AS_LINES
@click.option(
    "--trust-profile", "--trust", is_flag=True, help="Run it without asking, also if RUN was started elsewhere."
)
@run_options
def rerun(
    overrides: tuple[str, ...],
    resume: bool,
    detach: bool,
    ignore_leases: bool,
    when_free: bool,
    priority: int,
    as_json: bool,
    trust_profile: bool,
    **where: Any,
) -> None:
    """Run the profile of RUN once more, as it was run then.

    The profile of a run that was started elsewhere comes from its host: the commands in it are shown first.
    With --resume the job gets DISTTUI_RESUME=1, DISTTUI_RESUME_FROM, the folder of that run's checkpoints, and the
    profile's launch.resume_args, from the first attempt on. The new run saves to a folder of its own.
    """
    from runner.api.library import doubt_of_run, refuse_doubt
    from runner.api.rerunning import rerun as rerun_of
    from runner.ids import short

    with finding(**where) as (known, viewer):
        made = rerun_of(viewer, known, overrides, resume=resume)
        if made.foreign and not trust_profile:
            cure = f"Read it (disttui show {short(known.run)}); then add --trust-profile."
            refuse_doubt(doubt_of_run(known.run, made.profile), viewer.questions, cure)
    code = run_profile(
        made.profile,
        made.source,
        sandbox=made.sandbox,
        ssh_config=where["ssh_config"] or existing(known.ssh_config),
        accept_new=where["accept_new_host_keys"],
        as_json=as_json,
        detach=detach,
        sharing=Sharing(ignore_leases, when_free, priority),
        earlier=made,
    )
    raise SystemExit(code)
