"""One long-lived channel to the node program of one host: requests, streams, heartbeats."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Literal, overload

from disttui.runner.errors import HostError, LinkLostError, near
from disttui.runner.hosts.answers import Status, read_answer
from disttui.runner.hosts.ship import loader_line, node_parcel, remote_command, shell_word, train_parcel
from disttui.runner.paths import PathError
from disttui.runner.protocol.frames import Unpacker, pack_data, pack_json
from disttui.runner.protocol.limits import MOST_FILES
from disttui.runner.protocol.requests import CodeState, Completed, Op
from disttui.runner.text import clean, clean_lines, set_apart
from disttui.runner.transport import Connection, Stream
from disttui.runner.untrusted.records import message

NOISE_LIMIT = 64 * 1024
"""Bytes that login scripts may print before the loader's marker."""
BEGIN = 30.0
"""Seconds that a host may be silent before the loader's marker, and then before the first frame."""
HELLO = 90.0
"""Seconds until that marker, even if login scripts keep printing before it."""
_ANSWER_LIMIT = 4096
"""Bytes of the longest answer of the loader, which has a version and two short names."""
SILENCE = 5.0
"""Seconds without a frame after which a host counts as unreachable."""
REOPEN_AFTER = 7.0
"""Seconds without a frame after which the channel is closed and reopened: after an interruption, TCP retransmits at
growing intervals, so a new connection recovers sooner."""
_PROBLEM = 20_000
"""Characters kept of an error from a host, such as a traceback of the node program."""
_MOST = 4 << 20
"""Bytes to read in one call: more than an SSH window, since each read of a flood is followed by `_BREATH`."""
_FLOOD = 32 * 1024
_BREATH = 0.001
"""Seconds to wait while a flood arrives: waking up for each packet costs more than reading it."""

Item = Mapping[str, Any] | tuple[int, int, int, memoryview]
"""An item of a stream: an event, or a piece of a file as (file id, generation, offset, bytes)."""
Handler = Callable[[Item], None]
"""Called with a stream's items. To keep a piece for long, copy it: it keeps the buffer of its whole read alive."""


class Link:
    """A connection to one host's node program.

    The reader thread calls stream handlers directly: a handler that blocks delays only its own host, where the full
    SSH window stalls only the reading of files.

    Args:
        connection: An open connection; the link closes it.
        host: The host's name as the profile gives it.
        python: The interpreter for the node program, `python3` unless the profile names one.
    """

    def __init__(
        self,
        connection: Connection,
        host: str,
        python: str = "python3",
    ) -> None:
        self.host = host
        self.heard = time.monotonic()
        self.note = ""
        """A note for the user about how the host was reached, or ""."""
        self.node_python = ""
        self.node_zip = ""
        """Where the loader has put the node program."""
        self._connection = connection
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._handlers: dict[int, Handler] = {}
        self._files: Handler | None = None
        """The handler of the newest `read` or `fetch`, whose pieces have the file id 0."""
        self._mirrored: dict[int, Handler] = {}
        """File id → handler of the stream that announced it, until it ends: several parts of a run may share a link."""
        self._write_lock = threading.Lock()
        self._closed = False
        self._stream = connection.run(remote_command(python))
        self._unpacker = Unpacker(message)
        try:
            rest = self._shake_hands(python)
        except BaseException:
            if self._stream.exit_status() is None:
                self._stream.kill("stdin.buffer.readline")
            self.close()
            raise
        self._reader = threading.Thread(target=self._read, args=(rest,), name=f"link {self.host}", daemon=True)
        self._reader.start()

    @overload
    def request(self, op: Literal["complete"], *, timeout: float | None = 60.0, **arguments: Any) -> Completed: ...
    @overload
    def request(self, op: Literal["status"], *, timeout: float | None = 60.0, **arguments: Any) -> Status: ...
    @overload
    def request(self, op: Op, *, timeout: float | None = 60.0, **arguments: Any) -> Any: ...
    def request(self, op: Op, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        """Send a request to the node program and wait for the answer.

        Raises:
            HostError: The host answered with an error or not within `timeout` seconds, or the link broke.
        """
        future = self.submit(op, **arguments)
        try:
            return future.result(timeout)
        except FutureTimeout:
            raise HostError(
                self.host, f"no answer to '{op}' in {timeout:.0f} s", "Check what keeps the host busy."
            ) from None

    @overload
    def submit(self, op: Literal["status"], **arguments: Any) -> Future[Status]: ...
    @overload
    def submit(self, op: Literal["code"], **arguments: Any) -> Future[CodeState]: ...
    @overload
    def submit(self, op: Op, **arguments: Any) -> Future[Any]: ...
    def submit(self, op: Op, **arguments: Any) -> Future[Any]:
        """Send a request and return a future for its answer, which may raise HostError."""
        return self._begin(op, arguments)[1]

    def _begin(self, op: Op, arguments: Mapping[str, Any], handler: Handler | None = None) -> tuple[int, Future[Any]]:
        """Send a request; return its number and a future for its answer."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._waiting[number] = op, future
        if handler is not None:
            self._handlers[number] = handler
        self._send({"id": number, "op": op, **arguments}, future)
        return number, future

    def stream(self, op: Op, handler: Handler, **arguments: Any) -> Future[Any]:
        """Request a stream whose items are passed to `handler`. The future is done when the stream has ended."""
        if op in ("read", "fetch"):
            self._files = handler
        return self._begin(op, arguments, handler)[1]

    def upload(self, op: Op, pieces: Iterable[bytes], **arguments: Any) -> Future[Any]:
        """Send a request and then pieces of at most `limits.CHUNK` bytes; return once all have been written.

        The remaining pieces are not sent once the future is done: the host answered early, or the link broke.
        """
        number, future = self._begin(op, arguments)
        for piece in pieces:
            if future.done():
                return future
            self._send_bytes(pack_data(number, 0, 0, piece), future)
        self._send_bytes(pack_data(number, 0, 0, b""), future)
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Request the end of a stream; its future is done after its last item."""
        for number, (_, waiting) in list(self._waiting.items()):
            if waiting is future:
                self._send({"cancel": number})

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def silence(self) -> float:
        """Seconds since the host's last frame."""
        return time.monotonic() - self.heard

    def close(self) -> None:
        self._closed = True
        self._stream.close()
        self._connection.close()

    def _shake_hands(self, python: str) -> bytes:
        marker = secrets.token_hex(16)
        hello = {"marker": marker, "node": node_parcel().sha256, "train": train_parcel().sha256}
        with suppress(ConnectionError):  # the output of a command that ended immediately explains why
            self._stream.write(loader_line() + json.dumps(hello).encode() + b"\n")
        answer, rest = _read_answer(self._connection, self._stream, self.host, marker.encode(), python)
        self.node_python = clean(str(answer.get("python", "?"))[:100])
        self.node_zip = clean(str(answer.get("node", ""))[:4096])
        if "error" in answer:
            raise HostError(
                self.host,
                f"{python} is Python {self.node_python}: {clean(str(answer['error'])[:_PROBLEM])}",
                "Set `python:` to a newer interpreter of this host.",
            )
        missing = answer.get("missing")
        try:
            for parcel in (node_parcel(), train_parcel()):
                if isinstance(missing, list) and parcel.kind in missing:
                    packed = parcel.packed
                    self._stream.write(b"%d\n" % len(packed) + packed)
        except ConnectionError as error:
            _status(self._stream)
            said = clean_lines(self._stream.errors().strip())[-600:]
            raise LinkLostError(self.host, f"the link broke while starting: {error}" + _below(said)) from None
        return rest

    def _send(self, message: Mapping[str, Any], future: Future[Any] | None = None) -> None:
        self._send_bytes(pack_json(message), future)

    def _send_bytes(self, frame: bytes, future: Future[Any] | None) -> None:
        try:
            with self._write_lock:
                self._stream.write(frame)
        except (ConnectionError, OSError) as error:
            if future is not None and not future.done():
                future.set_exception(LinkLostError(self.host, f"the link broke: {error}"))

    def _beat(self) -> None:
        """Send a heartbeat to the host, unless another frame is being sent, which serves as one.

        It does not wait for the lock: a host that accepts no more data must not block the reader, which detects that.
        """
        if self._write_lock.acquire(blocking=False):
            try:
                self._stream.write(pack_json({"beat": time.time()}))
            except (ConnectionError, OSError):
                pass  # the reader detects the broken link as well
            finally:
                self._write_lock.release()

    def _read(self, rest: bytes) -> None:
        reason = "the host closed the channel"
        beaten = 0.0
        patience = BEGIN  # on a busy host or a slow file system, the node program takes long to start
        self.heard = time.monotonic()  # do not count the time of a slow login
        try:
            self._take(rest)
            while not self._closed:
                now = time.monotonic()
                if now - beaten >= 1.0:
                    beaten = now
                    self._beat()
                try:
                    data = self._stream.read(_MOST, 1.0)
                except TimeoutError:
                    if self.silence > patience:
                        reason = f"no response for {patience:.0f} s"
                        break
                    continue
                if not data:
                    break
                self.heard = time.monotonic()
                patience = REOPEN_AFTER
                self._take(data)
                if len(data) >= _FLOOD:
                    time.sleep(_BREATH)
        except PathError as error:
            reason = error.sentence
        except (OSError, ValueError) as error:
            reason = str(error)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            reason = f"malformed message: {clean(str(error))[:100]}"
        self._end(reason)

    def _take(self, data: bytes) -> None:
        for frame in self._unpacker.feed(data):
            self.heard = time.monotonic()
            if isinstance(frame, tuple):
                taker = self._mirrored.get(frame[0]) or self._files
                if taker:
                    taker(frame)
                elif frame[0]:
                    raise ValueError("received part of an unannounced file")
            elif "event" in frame:
                handler = self._handlers.get(frame["id"])
                if handler:
                    event = frame["event"]
                    if "file" in event:
                        self._mirrored[event["file"]] = handler
                        if len(self._mirrored) > MOST_FILES * len(self._handlers):
                            raise ValueError(f"more than {MOST_FILES:,} files announced for one run")
                    handler(event)
            elif "id" in frame:
                self._answer(frame)

    def _answer(self, frame: Mapping[str, Any]) -> None:
        op, future = self._waiting.get(frame["id"], ("", None))
        if future is not None and not future.done():
            given = frame.get("error")
            try:
                if "error" not in frame:
                    future.set_result(read_answer(op, frame.get("ok")))
                elif isinstance(given, dict) and isinstance(given.get("what"), str):
                    first, _, more = given["what"][:_PROBLEM].strip().partition("\n")
                    cure = clean(str(given.get("cure") or "")[:_PROBLEM])
                    future.set_exception(HostError(self.host, clean(first) + _below(more), cure))
                else:
                    raise ValueError
            except ValueError:
                cure = "Check whether another version of disttui runs there; if not, do not trust the host."
                future.set_exception(HostError(self.host, f"unreadable answer to '{op}'", cure))
        self._waiting.pop(frame["id"], None)
        ended = self._handlers.pop(frame["id"], None)
        if ended is not None:
            self._mirrored = {file: taker for file, taker in self._mirrored.items() if taker is not ended}

    def _end(self, reason: str) -> None:
        errors = self._stream.errors().strip()[-2000:]
        self.close()
        for _, future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(LinkLostError(self.host, f"the link broke: {reason}" + _below(errors)))


def _read_answer(
    connection: Connection, stream: Stream, host: str, marker: bytes, python: str
) -> tuple[Mapping[str, Any], bytes]:
    """Skip the output of login scripts up to the marker; return the loader's answer and the bytes after it."""
    heard = b""
    deadline = time.monotonic() + HELLO
    while True:
        start = heard.find(marker)
        end = heard.find(b"\n", start)
        if start >= 0 and (end >= 0 or len(heard) - start > _ANSWER_LIMIT):
            return _answer_of(connection, host, heard[start + len(marker) : end if end >= 0 else None]), heard[
                end + 1 :
            ]
        if start < 0 and len(heard) > NOISE_LIMIT:
            raise HostError(
                host,
                f"the login scripts print too much ({NOISE_LIMIT // 1024} KiB so far): "
                f"{clean(heard[:200].decode('utf-8', 'replace'))} …",
                "Let .bashrc etc. print only in interactive shells.",
            )
        try:
            data = stream.read(65536, min(BEGIN, max(0.0, deadline - time.monotonic())))
            if data and time.monotonic() > deadline:
                raise TimeoutError
        except TimeoutError:
            limit = HELLO if time.monotonic() > deadline else BEGIN
            raise _no_start(
                connection, stream, host, heard, python, f"the node program did not start in {limit:g} s"
            ) from None
        except ConnectionError as error:
            cure = "Try again; if it keeps failing, check the host's load and sshd log."
            raise LinkLostError(host, f"the link broke while starting: {error}", cure) from None
        if not data:
            raise _no_start(connection, stream, host, heard, python, "the node program ended immediately")
        heard += data


def _answer_of(connection: Connection, host: str, line: bytes) -> Mapping[str, Any]:
    """Parse the loader's answer. Raises HostError for an invalid one."""
    try:
        answer = json.loads(line) if len(line) <= _ANSWER_LIMIT else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        if broken := _broken_login(connection, host):
            raise broken
        said = clean(line[:200].decode("utf-8", "replace").strip())
        what = f"the answer is not from disttui's loader: '{said}' …"
        raise HostError(host, what, "Check for a login script or wrapper that echoes its input.")
    return answer


def _no_start(connection: Connection, stream: Stream, host: str, heard: bytes, python: str, what: str) -> HostError:
    if broken := _broken_login(connection, host):
        return broken
    status = _status(stream)
    said = clean_lines((stream.errors() or heard.decode("utf-8", "replace")).strip())[-600:]
    if re.search("(?:exec|/): restricted", said):
        return _no_login(host, said)  # `_broken_login` finds nothing, as its commands need no `exec` and no path
    named = [line for line in said.splitlines() if PurePosixPath(python).name in line and "version `" not in line]
    absent = any("not found" in line or "No such file" in line for line in named)
    missing = status == 127 or (status is not None and absent)
    if missing and "error while loading shared libraries" not in said:  # it exists, but `ulimit -v` may be too low
        if "/" in python and (cure := _path_cure(connection, python)):
            return HostError(host, f"{python} does not exist on this host", cure)
        return HostError(
            host,
            f"{python} not found on this host" + (f" ({said.splitlines()[-1]})" if said else ""),
            "Install Python 3.8 or later there, or set `python:` in the profile.",
        )
    if status is None:
        cure = (
            f"Find out why `{python} -c pass` hangs there: a network file system, a login script, or a wrapper waiting "
            "for input. Or set `python:` in the profile."
        )
    else:
        cure = f"Check `{python} -V` there, or set `python:` in the profile to Python 3.8 or later."
    return HostError(host, f"the node program could not be started with {python}: {what}" + _below(said), cure)


_READ = {"bash": "~/.bashrc", "zsh": "~/.zshenv", "fish": "~/.config/fish/config.fish", "tcsh": "~/.tcshrc or ~/.cshrc"}
"""Login shell → the file that it reads before it runs a command."""
_INTERACTIVE = {
    "fish": "put it between `if status is-interactive` and `end`",
    "tcsh": "put it between `if ($?prompt) then` and `endif`",
}
"""Login shell → how to limit something to interactive shells, if bash's syntax is an error there."""
_NO_LOGIN = re.compile(
    r"account is .*not available|nologin|fatal: unrecognized command|sftp connections only|restricted by rssh|"
    r"shell access",
    re.IGNORECASE,
)
"""What nologin, git-shell, an sftp server or a code host prints instead of running a command."""
_EXPIRED = re.compile(r"(?:password|account) has expired|change your password", re.IGNORECASE)
"""What sshd prints without a terminal instead of running a command."""
_PATIENCE = 10.0


_NEAREST = (
    'd=$1; until [ -e "$d" ]; do d=${d%/*}; [ "$d" ] || d=/; done; echo "$0 $1"; echo "$0 $d"; ls -a "$d" | head -n 999'
)
"""For sh: prints a path, its longest existing part, and the names in that. Without `'`, `!` and backslash."""


def _path_cure(connection: Connection, python: str) -> str:
    """Return the cure for an interpreter's path that does not exist, or "" if it exists or the host does not answer."""
    path, fixed = "", python
    for _ in range(python.count("/")):
        token = secrets.token_hex(8)
        try:
            printed, *_ = _printed(connection, f"sh -c '{_NEAREST}' {token} {shell_word(fixed)}")
        except (HostError, OSError):
            return ""
        said, _, listed = printed.rpartition(token)
        found = re.search(rf"^{token} (/.*)\n$", said, re.MULTILINE)
        there, *names = listed.removeprefix(" ").splitlines() or [""]
        if not found or not there:
            return ""
        path = path or found[1]
        if there == found[1]:
            return f"Did you mean {clean(there)}? Correct `python` in the profile." if path != there else ""
        missing, _, rest = found[1][len(there.rstrip("/")) + 1 :].partition("/")
        if missing in names:
            return f"{clean(there)}/{clean(missing)} is a broken link: create the environment again."
        meant = near(missing, [name for name in names if name.isprintable() and not set(name) & set("'!")])
        if meant is None:
            break
        fixed = "/".join([there.rstrip("/"), meant, *([rest] if rest else [])])
    return f"Correct `python` in the profile, or remove it. The nearest folder there is {clean(there)}."


def _printed(connection: Connection, command: str, given: str = "") -> tuple[str, str, int | None]:
    """Run a command on a host; return its output, its errors and its exit status. Raises HostError and OSError."""
    heard = b""
    stream = connection.run(command)
    deadline = time.monotonic() + _PATIENCE
    with suppress(ConnectionError):  # the output of a command that has ended is read below
        stream.write(given.encode())
    with suppress(TimeoutError):
        while len(heard) < NOISE_LIMIT and (data := stream.read(65536, max(0.0, deadline - time.monotonic()))):
            heard += data
    status, said = _status(stream), clean_lines(stream.errors().strip())[-600:]
    stream.close()
    return heard.decode("utf-8", "replace"), said, status


def _broken_login(connection: Connection, host: str) -> HostError | None:
    """Return the error for a login script that prevents a command or its input from arriving; None if both arrive.

    The input is a line that `head` prints unchanged, but that a shell would run.
    """
    token = secrets.token_hex(8)
    try:
        given = f"echo {token} read $SHELL\n"
        heard, said, status = _printed(connection, f"echo {token} ran $SHELL; head -n 1", given)
    except (HostError, OSError):
        return None
    ran, read = (re.search(rf"^{token} {word} ?(\S*)", heard, re.MULTILINE) for word in ("ran", "read"))
    arrived = f"echo {token}" in heard
    if ran and (arrived or status == 127):  # 127: the host has no `head`
        return None
    shell = next((found[1].rpartition("/")[2] for found in (ran, read) if found), "")
    file = _READ.get(shell, "a login script (~/.bashrc of bash, ~/.zshenv of zsh)")
    shown = clean_lines((said or heard).strip())[-600:]
    if not (ran or read or arrived) and _NO_LOGIN.search(shown):
        return _no_login(host, shown)
    if not (ran or read or arrived) and _EXPIRED.search(shown):
        cure = "Log in there with ssh at a terminal and set a new password, or ask its administrator."
        return HostError(host, "this user's password or account has expired there" + _below(shown), cure)
    if ran or arrived:
        flaw = "reads the standard input of commands"
    elif read:
        flaw = "replaces the login shell by another shell, as `exec zsh` does, and so runs no command"
    else:
        flaw = "ends the login shell (exit), replaces it (exec), redirects its output, or waits: "
        flaw += "no command answers; or the account (/bin/false) or sshd (ForceCommand) allows no commands"
        flaw += _below(shown)
    how = _INTERACTIVE.get(shell, "start it with `[[ $- == *i* ]] || return` (bash, zsh)")
    cure = f"Do that only in interactive shells: {how}."
    if not (ran or read or arrived):
        cure += " Or log in as a user who can run commands."
    return HostError(host, f"{file} {flaw}", cure)


def _no_login(host: str, said: str) -> HostError:
    cure = "Log in as another user (user@host), or have its administrator set a login shell."
    return HostError(host, "this user has no login shell there" + _below(said), cure)


def _status(stream: Stream) -> int | None:
    """Wait up to 1 s for the exit status of a command whose output has ended; status and errors may arrive later."""
    deadline = time.monotonic() + 1.0
    while stream.exit_status() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return stream.exit_status()


def _below(said: str) -> str:
    """Format a host's output as separate lines to append to an error, or ""."""
    return "".join(f"\n{line}" for line in set_apart(said)) if said else ""
