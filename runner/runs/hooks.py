"""The profile's `on_end`: when a run has ended, a command and a webhook on this machine get its summary."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable

from disttui.runner.errors import DisttuiError
from disttui.runner.ids import short
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.files import Exit
from disttui.runner.runs.registry import KnownRun, profile_of
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean, clean_lines
from disttui.runner.text.masking import masked

LIMIT = 10.0
"""Seconds that each of them may take."""
SHOWN = 500
"""Characters at the end of a failed command's output that are shown."""


def say_on_end(profile: Profile, say: Callable[[str], None]) -> None:
    """Announce, before the start of a run that is not followed, when its `on_end` will run."""
    if profile.on_end.command or profile.on_end.webhook:
        say("on_end runs on this machine once `disttui attach` or the app sees the run's end")


def tell_end(profile: Profile, run: KnownRun, state: RunState, say: Callable[[str], None]) -> None:
    """Run the profile's `on_end`, once per run on this machine, or announce when it will run.

    Its errors are passed to `say` and never raised.
    """
    on_end = profile.on_end
    if not (on_end.command or on_end.webhook):
        return
    if state.result is None:
        say(f"on_end has not run; it runs on this machine once `disttui attach {short(run.run)}` sees the run's end")
        return
    try:
        (run.folder / ".on_end").touch(0o600, exist_ok=False)
    except FileExistsError:
        return  # another viewer of this user was first
    except OSError as error:
        say(f"on_end: {error}")
    summary = masked(json.dumps(end_summary(run, state))).encode()
    if on_end.command:
        _command(on_end.command, summary, say)
    if on_end.webhook:
        _webhook(on_end.webhook, summary, say)


def run_end_hook(run: KnownRun, state: RunState, say: Callable[[str], None]) -> None:
    """Run `on_end` for a viewer that attached later, with the stored profile; not for runs of other users."""
    if run.adopted:
        return
    try:
        tell_end(profile_of(run), run, state, say)
    except DisttuiError as error:
        say(f"on_end: {error.sentence}")


def end_summary(run: KnownRun, state: RunState) -> dict[str, object]:
    """The end of a run as data, without environment and secrets."""
    result: Exit = state.result or {}
    return {
        "run": run.run,
        "name": run.name,
        "by": run.by,
        "hosts": [host.name for host in run.hosts],
        "nproc": [host.nproc for host in run.hosts],
        "started": run.started,
        "ended": result.get("t"),
        "state": result.get("state"),
        "code": result.get("code"),
        "cause": result.get("cause"),
        "attempt": state.attempt,
        "metrics": state.metrics,
    }


def _command(words: tuple[str, ...], summary: bytes, say: Callable[[str], None]) -> None:
    name = clean(words[0])
    # Files, not pipes: background processes of the command must not block us.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as complaints:
        given.write(summary)
        given.seek(0)
        try:
            child = subprocess.Popen(
                words, stdin=given, stdout=subprocess.DEVNULL, stderr=complaints, start_new_session=True
            )
        except OSError as error:
            say(f"on_end: {name}: {error.strerror}")
            return
        try:
            child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            # The whole session, including a shell's children.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            say(f"on_end: {name} took longer than {LIMIT:.0f} s and was ended")
            return
        if child.returncode:
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - 4 * SHOWN))
            said = clean_lines(complaints.read().decode("utf-8", "replace").strip())[-SHOWN:]
            say(f"on_end: {name} ended with exit code {child.returncode}" + (f": {said}" if said else ""))


def _webhook(url: str, summary: bytes, say: Callable[[str], None]) -> None:
    # The URL's path is often a secret: messages do not repeat it.
    request = urllib.request.Request(url, summary, {"Content-Type": "application/json"})  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=LIMIT):  # noqa: S310 - the profile allows http and https only
            pass
    except urllib.error.HTTPError as error:
        say(f"on_end: the webhook answered {error.code} {clean(str(error.reason))}")
    except (OSError, ValueError) as error:
        say(f"on_end: the webhook cannot be reached: {clean(str(getattr(error, 'reason', error)))}")
