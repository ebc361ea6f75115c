"""The question before a run is run again, and the way to the wizard's checks from there."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from runner.api.rerunning import Again, Checkpoint, again
from runner.errors import DisttuiError, InputError
from runner.formatting import amount
from runner.ids import short
from runner.profile.disclosure import foreign_lines
from runner.runs.registry import KnownRun
from runner.text import clean

if TYPE_CHECKING:
    from tui.shell import Shell


SANDBOX = ("node1", "node2")
"""The sandbox hosts that the app runs on this machine."""
_PATIENCE = 10.0
"""Seconds to wait for the hosts of a run that has ended."""


async def run_again(app: Shell, run: KnownRun, checkpoint: Checkpoint | None = None) -> None:
    """Ask, then let the wizard check the hosts and launch; call it in a worker.

    Args:
        checkpoint: The checkpoint to continue from; None: start from the beginning.
    """
    try:
        made = await asyncio.to_thread(again, run, resume=checkpoint is not None)
        _refuse_played(made)
    except InputError as error:
        app.notify(str(error), severity="error", timeout=12)
        return
    question = f"Run {short(run.run)} {'on from its checkpoint' if checkpoint else 'again'}?"
    if await app.ask(question, "\n".join(consequence(run, made, checkpoint)), "run"):
        app.router.open_again(made)


def consequence(run: KnownRun, made: Again, checkpoint: Checkpoint | None) -> list[str]:
    """The consequences of running it again, a sentence per line."""
    names = ", ".join(host.name for host in made.profile.hosts)
    processes = amount(sum(host.nproc for host in run.hosts), "process")
    lines = [
        f"Checks {amount(len(made.profile.hosts), 'host')} first: {names}. If nothing stands in the way, starts the "
        f"same training there as a new run ({processes} then)."
    ]
    if checkpoint is not None:
        written = time.strftime("%d %b %H:%M", time.localtime(checkpoint.written))
        lines.append(
            f"Newest there: {checkpoint.name} on {checkpoint.host}, of {written}. The job continues from it; "
            "the new run saves to a folder of its own."
        )
    if made.foreign:
        lines.append("Its profile is the word of the host that it was found on. With your login, it runs:")
    foreign = foreign_lines(made.profile) if made.foreign else ()
    # Safe already; of what its author made look like a secret nothing is masked here.
    return [*(clean(line, guesses=False) for line in lines), *(f"{key}: {text}" for key, text in foreign)]


def saved_on_hosts(run: KnownRun, ssh_config: str | None) -> Checkpoint | None:
    """The newest checkpoint of a run, None if no host reports one; call it in a thread."""
    from runner.api.rerunning import newest_checkpoint
    from runner.api.viewer import Viewer

    with Viewer(ssh_config=ssh_config, runs_bring_theirs=True) as viewer:
        try:
            return newest_checkpoint(viewer, run, _PATIENCE)
        except DisttuiError:
            return None


def _refuse_played(again: Again) -> None:
    """Raise InputError for a run on sandbox hosts that the app's sandbox does not have."""
    if again.sandbox and not {host.host for host in again.profile.hosts} <= set(SANDBOX):
        raise InputError(
            f"{short(again.run)} was played in a sandbox with hosts of its own",
            f"Run it again as it was: disttui rerun {short(again.run)}",
        )
