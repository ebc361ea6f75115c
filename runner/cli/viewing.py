"""The viewer of a command: questions go to the controlling terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runner.api.viewer import Viewer
from runner.ids import short
from runner.profile.disclosure import effect_lines, foreign_lines
from runner.text import clean
from runner.text.masking import masked
from runner.transport.prompts import TerminalPrompts, confirm

if TYPE_CHECKING:
    from runner.api.questions import Doubt
    from runner.profile import Profile


class TerminalQuestions(TerminalPrompts):
    """Asks on the controlling terminal; without one, there is no answer."""

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Show the commands of a profile, and ask."""
        if doubt.changes:
            return confirm("\n".join([f"{doubt}:", *(f"  {line}" for line in doubt.changes), "Use it?"]))
        shown = (foreign_lines if doubt.path is None else effect_lines)(doubt.profile)
        lines = [masked(f"  {key}: {text}", guesses=False) for key, text in shown]
        return confirm("\n".join([f"{doubt}. With your login, it runs:", *lines, "Go on?"]))

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Ask whether to log in to hosts that another host names."""
        names = ", ".join(clean(other, guesses=False) for other in others)
        words = f"{asked} says that {short(run)} also runs on {names}"
        return confirm(f"{words}.\nLog in there as well, as your ssh reaches these names?")


@contextmanager
def viewing(ssh_config: str | None, accept_new: bool, played: Profile | None = None) -> Iterator[Viewer]:
    """The viewer of a command.

    Args:
        played: A profile whose hosts are simulated on this machine; None: real hosts.
    """
    if played is not None:
        with Viewer.in_sandbox([host.host for host in played.hosts], os.environ) as viewer:
            yield viewer
        return
    questions = TerminalQuestions()
    try:
        with Viewer(os.environ, questions, ssh_config=ssh_config, accept_new_host_keys=accept_new) as viewer:
            yield viewer
    finally:
        questions.close()
