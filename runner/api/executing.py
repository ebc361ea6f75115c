"""Runs a command on several hosts at the same time."""

from __future__ import annotations

import base64
import json
import queue
import secrets
import shlex
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.hosts.ship import node_parcel, shell_word
from disttui.runner.ids import short
from disttui.runner.profile.sections import Host
from disttui.runner.protocol.requests import ShellRequest
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import LineMaker
from disttui.runner.transport import Stream

UNKNOWN = 255
"""Exit code of a killed command, as ssh's."""
_SILENCE = 0.5
_RUN = (
    'exec sh -c \'read -r line; exec 3<&0; {{ read -r stop <&3 || exit; trap "" TERM; for round in 1 2 3 4 5; do '
    "for file in $(grep -ls DISTTUI_EXEC=$1 /proc/[0-9]*/environ); do pid=${{file#/proc/}}; kill -9 ${{pid%/*}}; "
    'done; done; kill -9 -$$; }} >/dev/null 2>&1 & DISTTUI_EXEC=$1 sh -c -- "$line" 2>&1 </dev/null 3<&-; code=$?; '
    "exec 2>/dev/null; kill $!; exit $code' sh {token}"
)
"""Runs the first line of its input. At a second line, kills all processes of the first, even those in another session
or without their parent.

The line is sent on standard input because login shells differ in how they parse words.
"""
_ACTIVATED = (
    'eval "$1" || { code=$?; echo "disttui: activate ended with status $code" >&2; exit $code; }; exec sh -c -- "$2"'
)
_AHEAD = 64
"""Most pieces of output waiting to be printed; beyond, commands wait on their hosts."""


@dataclass(frozen=True)
class ExecPlace:
    """Where to run it."""

    host: Host
    folder: str = ""
    """Folder; empty: the home folder."""
    activate: str = ""
    """The profile's `activate`, run first."""
    ssh_config: str | None = None
    rank: tuple[KnownRun, int, int] | None = None
    """A run, node rank and rank whose folder and environment a shell gets instead."""


@dataclass(frozen=True)
class ExecLine:
    """A line that the command printed, on either of its streams, safe for a terminal."""

    host: str
    text: str


@dataclass(frozen=True)
class ExecEnded:
    """The end of the command on one host."""

    host: str
    code: int
    """1 if it could not be run."""
    error: DisttuiError | None = None
    """Why it could not be run."""


def execute(
    viewer: Viewer, places: Sequence[ExecPlace], command: Sequence[str]
) -> Generator[ExecLine | ExecEnded, None, None]:
    """Run a command on all hosts concurrently, by their login shells and without standard input.

    It is killed where it still runs when the iterator is closed.

    Args:
        command: Words, which arrive unchanged; a single one is a line for sh.

    Raises:
        InputError: A word contains a line break.
    """
    if any("\n" in word for word in command):
        raise InputError("the command contains a line break", "Put it into a script on the hosts and run that.")
    line = command[0] if len(command) == 1 else shlex.join(command)
    heard: queue.Queue[list[ExecLine] | ExecEnded] = queue.Queue(_AHEAD)
    over = threading.Event()
    for place in places:
        threading.Thread(target=_run, args=(viewer, place, line, heard, over), daemon=True).start()
    left = len(places)
    try:
        while left:
            one = heard.get()
            if isinstance(one, ExecEnded):
                left -= 1
                yield one
            else:
                yield from one
    finally:
        over.set()
        deadline = time.monotonic() + 5
        while left and time.monotonic() < deadline:
            try:
                left -= isinstance(heard.get(timeout=0.1), ExecEnded)
            except queue.Empty:
                continue


def rank_place(run: KnownRun, rank: int) -> ExecPlace:
    """The place of a rank of a run. Raises InputError if it has no such rank, or no host with a terminal."""
    if run.sandbox:
        cure = f"Run a command: disttui exec {short(run.run)} -- COMMAND"
        raise InputError("hosts of a sandbox give no terminal", cure)
    first = 0
    for node, host in enumerate(run.hosts):
        if rank < first + host.nproc:
            return ExecPlace(host.as_host(), ssh_config=run.ssh_config, rank=(run, node, rank))
        first += host.nproc
    raise InputError(f"{short(run.run)} has no rank {rank}", f"Its ranks are 0 to {first - 1}.")


def open_shell(viewer: Viewer, place: ExecPlace) -> int:
    """Give this process's terminal to a shell on a host until it ends; returns its exit code.

    Raises:
        DisttuiError: It cannot be reached, or the connection is lost.
    """
    host = place.host
    link = viewer.open_link(host, place.ssh_config, any_python=True)
    try:
        link.request("complete")  # the answer shows that the node program is installed
    finally:
        link.close()
    own = not link.note and host.python and host.python[0] in "/~"  # else it did not start
    usual = node_parcel().remote_path
    program = usual if link.node_zip.endswith(usual.removeprefix("~")) else shell_word(link.node_zip)
    request: ShellRequest = {
        "run": "", "run_dir": "", "node_rank": 0, "rank": 0, "workdir": place.folder, "activate": place.activate
    }  # fmt: skip
    if place.rank:
        run, node, rank = place.rank
        request = {**request, **run.request(), "node_rank": node, "rank": rank}
    word = base64.urlsafe_b64encode(json.dumps(request).encode()).decode()  # no login shell changes base64
    python = host.python if own and host.python else "python3"
    connection = viewer.connector(place.ssh_config).connect(host.endpoint)
    try:
        code = connection.attend(f"exec {shell_word(python)} -I -X utf8 {program} shell {word}")
        return UNKNOWN if code is None else code
    except ConnectionError as error:
        raise HostError(host.name, f"the connection was lost: {error}", "Open the shell again.") from None
    finally:
        connection.close()


def _run(
    viewer: Viewer, place: ExecPlace, line: str, heard: queue.Queue[list[ExecLine] | ExecEnded], over: threading.Event
) -> None:
    name, token = place.host.name, f"disttui-exec-{secrets.token_hex(8)}"
    lines = LineMaker()
    try:
        connection = viewer.connector(place.ssh_config).connect(place.host.endpoint)
        try:
            stream = connection.run(_RUN.format(token=token))
            stream.write(f"{_script(place, line)}\n".encode("utf-8", "surrogateescape"))
            while not over.is_set():
                try:
                    data = stream.read(65536, _SILENCE)
                except TimeoutError:
                    continue
                heard.put([ExecLine(name, text) for text in (lines.feed(data) if data else lines.flush())])
                if not data:
                    break
            if over.is_set():
                with suppress(ConnectionError):
                    stream.write(b"\n")
                    _code(stream)
                stream.kill(token)
            heard.put(ExecEnded(name, _code(stream)))
        finally:
            connection.close()
    except DisttuiError as error:
        heard.put(ExecEnded(name, 1, error))
    except (OSError, ConnectionError) as error:
        lost = HostError(name, f"the connection was lost: {error}", "The command may still be running there.")
        heard.put(ExecEnded(name, 1, lost))


def _script(place: ExecPlace, line: str) -> str:
    """A line for sh that runs `line` in the place's folder, after its `activate` for bash."""
    steps = [f"cd {_folder(place.folder)} || exit"] if place.folder else []
    if place.activate:
        activate = place.activate.replace("\\", "\\\\").replace("\n", "\\n")
        line = f'exec bash -c {shlex.quote(_ACTIVATED)} sh "$(printf %b {shlex.quote(activate)})" {shlex.quote(line)}'
    return "; ".join([*steps, line])  # the line is last and unchanged, since it may end in `;`, `&` or a comment


def _folder(path: str) -> str:
    """A folder quoted for sh, which expands `~`; relative folders are below the home folder."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else "~" if path == "~" else shlex.quote(path)


def _code(stream: Stream) -> int:
    deadline = time.monotonic() + 2
    while (code := stream.exit_status()) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return UNKNOWN if code is None else code
