"""The commands that look at runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from runner.cli.app import has_terminal, open_app
from runner.cli.options import AS_JSON, AS_LINES, complete_hosts, example, paths, ssh_options
from runner.cli.run_selector import (
    check_run_dir,
    complete_runs,
    finding,
    optional_run_options,
    run_options,
    warn,
)
from runner.protocol.names import RUN_DIR

LOCAL = click.option("--local", is_flag=True, help="Tell what is held here, without asking any host.")


@click.command(epilog=example("disttui ps", "disttui ps --host box1 --json"))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    shell_complete=complete_hosts,
    help="Also all runs of this host, whoever started them.",
)
@click.option(
    "--run-dir",
    metavar="FOLDER",
    default=RUN_DIR,
    show_default=True,
    callback=check_run_dir,
    help="Where runs lie on --host.",
)
@LOCAL
@AS_JSON
@ssh_options
def ps(
    hosts: tuple[str, ...],
    run_dir: str,
    local: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """List the runs that are known here, and on given hosts.

    Hosts have 3 seconds to tell how their runs are; rows that are older say so. Exit code 3 when a host given by
    --host could not be asked.
    """
    from runner.cli.viewing import viewing
    from runner.commands.ps import ps as listed

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        text, problems, code = listed(
            hosts, viewer.connector, os.environ, local=local, as_json=as_json, run_dir=run_dir
        )
        warn(problems)
        click.echo(text)
    raise SystemExit(code)


@click.command(epilog=example("disttui attach 2node-7f3a", "disttui attach 2node-7f3a --host box1"))
@click.option("--read-only", is_flag=True, help="Change nothing on the hosts, not even what a dead supervisor left.")
@AS_LINES
@click.option("--plain", is_flag=True, help="Print text in a terminal as well, instead of opening the dashboard.")
@run_options
def attach(read_only: bool, as_json: bool, plain: bool, **where: Any) -> None:
    """Look in on RUN until it ends; leaving does nothing to it.

    In a terminal this is the app's dashboard. As text it begins with where the run is and the last lines of every
    rank, and Ctrl-C leaves. RUN is an id or its beginning. The exit code of the text is the run's; 0 when it was left.
    """
    from runner.cli.attaching import look_in

    with finding(where) as (known, viewer):
        if has_terminal() and not (plain or as_json):
            options = {name: where[name] for name in ("ssh_config", "accept_new_host_keys")}
            open_app("", ("run", (known.run,)), read_only=read_only, **options)
        code = look_in(viewer, known, as_json=as_json, read_only=read_only)
    raise SystemExit(code)


def _complete_replays(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    recorded = [CompletionItem("example")] if "example".startswith(incomplete) else []
    return [paths("dir", incomplete), *complete_runs(ctx, param, incomplete), *recorded]


@click.command(epilog=example("disttui replay example"))
@click.argument("run", metavar="RUN", shell_complete=_complete_replays)
def replay(run: str) -> None:
    """Play RUN back in the dashboard, with a cursor in time.

    RUN is an id or its beginning, a folder that mirrors a run, or `example`: a recorded one to try the app with.
    """
    instead = "" if run == "example" else f"Without one: disttui show {run}"
    open_app(instead, ("replay", (run,)))


@click.command(
    epilog=example("disttui logs 2node-7f3a --rank 1 --since 10m", "disttui logs 2node -f --grep 'loss|Error'")
)
@click.option("--rank", type=click.IntRange(min=0), metavar="RANK", help="Of this rank only.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@click.option(
    "--since", metavar="WHEN", help="What was printed since: 90s, 10m, 2h, 3d ago, or a date like 2026-03-01T14:00."
)
@click.option("--grep", metavar="REGEX", help="Only lines in which this is found.")
@run_options
def logs(rank: int | None, follow: bool, since: str | None, grep: str | None, **where: Any) -> None:
    """Print all that the ranks of RUN have printed, rank by rank.

    Then what torchrun, `activate` and `job.wrap` have printed, as HOST:launcher; not with --rank.

    With --host, of the ranks on that host of the run; a run that is not known here is looked for there.
    """
    from runner.commands import logs as command
    from runner.runs.find import is_known

    on_host = None
    if is_known(where["run"], os.environ):
        on_host, where["host"] = where["host"], None
    wanted = command.Wanted(
        rank,
        on_host,
        command.parse_since(since) if since else None,
        command.parse_grep(grep) if grep else None,
    )
    with finding(where) as (known, viewer):
        code = command.logs(known, viewer.connector(known.ssh_config), wanted, follow=follow)
    raise SystemExit(code)


@click.command(epilog=example("disttui show 2node-7f3a"))
@LOCAL
@AS_JSON
@run_options
def show(local: bool, as_json: bool, **where: Any) -> None:
    """Tell the story of RUN: what happened when, and the result.

    With the versions on its hosts, and the profile as it was run.
    """
    from runner.commands.tell import show as told

    with finding(where) as (known, viewer):
        text, warnings = told(known, None if local else viewer.connector(known.ssh_config), as_json=as_json)
    warn(warnings)
    click.echo(text)


@click.command(
    epilog=example(
        "disttui metrics 2node-7f3a --csv > 2node.csv",
        "disttui metrics --try train.log --pattern 'step=(?P<step>\\d+)'",
    )
)
@LOCAL
@click.option("--csv", "as_csv", is_flag=True, help="Print one table with a column per metric.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line (the default).")
@click.option(
    "--try",
    "tried",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show instead what is read from a log, an event file, a .wandb file or a CSV.",
)
@click.option("--pattern", metavar="REGEX", help="With --try: the expression to use, as metrics.pattern in a profile.")
@optional_run_options
def metrics(
    local: bool, as_csv: bool, as_json: bool, tried: Path | None, pattern: str | None, run: str | None, **where: Any
) -> None:
    """Print every metric of every rank of RUN."""
    from runner.commands.tell import metrics as figures
    from runner.errors import InputError

    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other", "Give one of them.")
    if tried is not None:
        from runner.commands.try_log import try_log

        if run is not None or as_csv:
            raise InputError("--try reads a file: it goes with neither RUN nor --csv", "Give one of them.")
        raise SystemExit(try_log(tried, pattern, click.echo, as_json=as_json))
    if run is None:
        raise click.UsageError("Missing argument 'RUN'.")
    if pattern is not None:
        raise InputError("--pattern goes with --try", "A run's pattern stands in its profile: metrics.pattern.")
    where["run"] = run
    with finding(where) as (known, viewer):
        text, warnings = figures(known, None if local else viewer.connector(known.ssh_config), as_csv=as_csv)
    warn(warnings)
    if text:
        click.echo(text)
