"""Connections with this machine's ssh program, for Kerberos, hardware keys and open ControlMaster sockets."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from disttui.runner.address import Address
from disttui.runner.errors import HostError, LinkLostError
from disttui.runner.text import clean
from disttui.runner.transport.base import (
    MOST_QUESTIONS,
    PASSWORD,
    TOO_MANY,
    TOO_MANY_CURE,
    CountedPrompts,
    Gate,
    GateEntry,
    Passwords,
    Prompts,
    words_of_host,
)
from disttui.runner.transport.known_hosts import lookup_name
from disttui.runner.transport.local import ERRORS_LIMIT, LocalStream, start
from disttui.runner.transport.sockets import BUSY_TRIES, CONNECT_LIMIT, unforwarded, unreachable, unresolved, wait_out
from disttui.runner.transport.ssh_config import SshTarget, resolve, ssh_words
from disttui.runner.transport.terminal import lend_terminal

_FIXED = (
    *("-T", "-a", "-x", "-oClearAllForwardings=yes", "-oRemoteCommand=none", "-oPermitLocalCommand=no"),
    # An open master is used, but none is started: it would end with this process and cut the user's other sessions.
    *("-oControlMaster=no", "-oLogLevel=INFO", "-oServerAliveInterval=5", "-oServerAliveCountMax=3"),
    *("-oNoHostAuthenticationForLocalhost=no", "-oVerifyHostKeyDNS=no", "-oFingerprintHash=sha256"),
)
_MARK = b"disttui-logged-in\n"
_NOISE_LIMIT = 64 * 1024
_LOGIN_LIMIT = 120.0
"""Seconds for a login, without the user's time to answer."""
_QUIET = 2.0
"""Seconds after which the output of a login that asks no question is shown, since it may wait for the user."""
_UNANSWERED = 20.0
"""Seconds after which a login that asks and prints nothing counts as complete."""
_EXIT_LIMIT = 2.0
"""Seconds that ssh may take to exit after its output ends."""
_FAILED = 255
"""ssh's exit code for its own errors, and for commands ended by a signal."""
_BROKE = re.compile(r"Connection (?:to|closed|reset)|Broken pipe|Timeout, server")
_BUSY = re.compile(r"kex_exchange_identification: .*Connection (?:closed|reset)")
_ADDED = re.compile("Permanently added|Failed to add the host")
_KINDS = {"cipher": "ciphers", "MAC": "macs", "key exchange method": "kex algorithm", "host key type": "host key"}
"""ssh's term → paramiko's term."""
_NO_MATCH = re.compile(
    rf"Unable to negotiate with (?P<host>\S+) port (?P<port>\d+): no matching (?P<kind>{'|'.join(_KINDS)}) found\. "
    r"Their offer: (?P<offer>.*)"
)
_HOST_KEY = re.compile(
    r"The authenticity of host '(?P<host>\S+).*\n(?:.*\n)*?(?P<type>\S+) key fingerprint is (?P<print>SHA256:\S+?)\.?\n"
)


class SystemSshConnector:
    """Starts an ssh process for each command and passes its questions to `prompts`. Arguments as `SshConnector`."""

    def __init__(self, config_file: str | None, prompts: Prompts, accept_new: bool = False, limit: int = 16) -> None:
        self._config_file = config_file
        self.prompts = prompts
        self._accept_new = accept_new
        self.gate = Gate(limit)
        self.passwords = Passwords()
        self.passphrases: dict[str, str | None] = {}
        """ssh's question for a passphrase → the answer."""
        self.asking = threading.Lock()
        """Held while a passphrase is asked for, since the answer may spare other logins the question."""
        self._lock = threading.Lock()
        self._open: list[SystemSshConnection] = []

    def connect(self, address: Address) -> SystemSshConnection:
        target = resolve(address, self._config_file)
        words = [*ssh_words(address, self._config_file), *_FIXED, *target.no_command]
        words.append(f"-oConnectTimeout={target.connect_timeout or CONNECT_LIMIT:.0f}")
        takes_new = self._accept_new or target.strict in ("accept-new", "no")
        words.append(f"-oStrictHostKeyChecking={'accept-new' if takes_new else target.strict}")
        connection = SystemSshConnection(target, [*words, "--", address.host], takes_new, self)
        with self._lock:
            self._open = [*(each for each in self._open if not each.closed), connection]
        return connection

    def close(self) -> None:
        with self._lock:
            connections, self._open = self._open, []
        for connection in connections:
            connection.close()


class SystemSshConnection:
    """A host whose commands each run in their own ssh process, which logs in or uses an open ControlMaster."""

    def __init__(self, target: SshTarget, words: list[str], takes_new: bool, connector: SystemSshConnector) -> None:
        self.target = target
        self.takes_new = takes_new
        self.connector = connector
        self.closed = False
        self._words = words
        self._streams: list[SystemSshStream] = []

    @property
    def name(self) -> str:
        return self.target.name

    def run(self, command: str) -> SystemSshStream:
        """Start `command` and return when the login is complete. Raises HostError."""
        with self.connector.gate.turn() as turn, self._askpass() as askpass:
            # Only output from the host shows that the login is complete: ssh itself does not report it.
            line = f"echo {_MARK.decode().strip()}; {command}"
            for tries in range(1, BUSY_TRIES + 1):
                stream = SystemSshStream(start(self.name, [*self._words, line], askpass.environ))
                self._streams.append(stream)
                try:
                    _Login(self, stream, CountedPrompts(self.connector.prompts, turn)).run(askpass)
                except BaseException as error:
                    # A ProxyCommand is not run again, since it may open a browser.
                    busy = isinstance(error, HostError) and self.target.left_to_ssh != "ProxyCommand"
                    busy = busy and bool(_BUSY.match(stream.errors()))
                    stream.close()
                    if not busy or tries == BUSY_TRIES:
                        raise
                else:
                    return stream
                wait_out()
        raise AssertionError

    def _askpass(self) -> Askpass:
        try:
            return Askpass()
        except OSError as error:
            what = f"ssh's questions cannot be passed on: {error.strerror or error}"
            raise HostError(self.name, what, f"Free space in {tempfile.gettempdir()}.") from None

    def attend(self, command: str) -> int | None:
        """Run `command` at the terminal, where ssh asks its questions itself; None for exit code 255."""
        program, *options = self._words
        status = lend_terminal([program, "-oLogLevel=ERROR", *options[:-2], "-tt", *options[-2:], command])
        return None if status == _FAILED else status

    def close(self) -> None:
        self.closed = True
        for stream in self._streams:
            stream.close()


class SystemSshStream(LocalStream):
    """A `Stream` over an ssh process. `kill` only ends ssh, which closes the command's input; more needs a login."""

    rest = b""
    """Data that arrived after the mark of the login."""

    def read(self, size: int, timeout: float | None = None) -> bytes:
        if self.rest:
            data, self.rest = self.rest[:size], self.rest[size:]
            return data
        data = super().read(size, timeout)
        if not data and not self._closed:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_LIMIT)
            last = self.errors().strip().rpartition("\n")[2]
            if self._process.poll() == _FAILED and _BROKE.search(last):
                raise ConnectionError(clean(last))
        return data

    def exit_status(self) -> int | None:
        status = super().exit_status()
        return None if status == _FAILED else status

    def close(self) -> None:
        # Otherwise ssh would keep waiting for a command that does not end.
        self._signal(signal.SIGTERM)
        super().close()


class _Login:
    """The login of one ssh process, from its start to the start of its command."""

    def __init__(self, connection: SystemSshConnection, stream: SystemSshStream, prompts: Prompts) -> None:
        self._target = connection.target
        self._takes_new = connection.takes_new
        self._connector = connection.connector
        self._passwords = connection.connector.passwords
        self._gate = connection.connector.gate
        self._stream = stream
        self._prompts = prompts
        self._asking = ExitStack()
        self._turn: GateEntry | None = None
        """Place at the gate for logins that ask for a password, while held."""
        self._heard = ""
        self._questions = 0
        self._unlocked: dict[str, str | None] = {}
        """ssh's question → passphrase that this login has used."""
        self._given: dict[str, str] = {}
        """`user@host` → last password that was sent."""

    def run(self, askpass: Askpass) -> None:
        """Return when the command starts, or a program that runs in its place. Raises HostError."""
        output, errors = b"", ""
        quiet_since = time.monotonic()
        deadline = quiet_since + _LOGIN_LIMIT
        shared = _is_socket(self._target.control_path)
        with self._asking:
            while _MARK not in output:
                try:
                    data = self._stream.read(_NOISE_LIMIT, 0.1)
                except TimeoutError:
                    begun = time.monotonic()
                    askpass.serve(self._answer)
                    deadline += time.monotonic() - begun
                    if (now := self._stream.errors()) != errors:
                        errors, quiet_since = now, time.monotonic()
                    elif time.monotonic() - quiet_since > _QUIET and (said := self._said()):
                        self._count()
                        self._prompts.tell(self._target.name, said)
                except ConnectionError:
                    raise _failure(self._target, self._stream.errors()) from None
                else:
                    if not data:
                        if self._stream.exit_status() is None:
                            raise _failure(self._target, self._stream.errors())
                        self._stream.rest = output  # from a program that ran in place of the command
                        return
                    output = (output + data)[-_NOISE_LIMIT:]
                silent = 0.0 if self._questions or errors else time.monotonic() - quiet_since
                if shared and silent > _UNANSWERED * 2:
                    raise _stale(self._target, silent)
                if not shared and silent > _UNANSWERED:
                    break  # a login script keeps the command from running, which the reader of its output will detect
                if time.monotonic() > deadline:
                    raise _failure(self._target, f"no login in {_LOGIN_LIMIT:.0f} s")
            before, mark, rest = output.partition(_MARK)
            self._stream.rest = rest if mark else before
            for login, password in self._given.items():
                host, user = (self._target.name, login), login.rpartition("@")[0]
                self._passwords.keep(host, user, password, host[0], self._gate.others, self._prompts)

    def _answer(self, question: str, notice: bool) -> str | None:
        self._count()
        name, said = self._target.name, self._said()
        if notice:
            self._prompts.tell(name, words_of_host(question))
            return None
        if match := _HOST_KEY.match(question):
            shown = match["host"] if match["host"] == name else f"{name} ({match['host']})"
            return "yes" if self._prompts.accept_host_key(shown, match["type"], match["print"]) else "no"
        if match := PASSWORD.fullmatch(question):
            login = match["by"] or match["of"] or self._target.place
            return self._password(login, said)
        if question.startswith("("):  # ssh puts (user@host) before a host's question; all others are its own
            return self._prompts.secret(name, "your answer:", words_of_host(said, question))
        if question.startswith("Enter passphrase for key "):
            return self._passphrase(question, said)
        return self._prompts.secret(name, question, said)

    def _passphrase(self, question: str, said: str) -> str | None:
        """Answer with a passphrase known from another login, or ask; ssh repeats its question after a wrong one."""
        known, wrong = self._connector.passphrases, self._unlocked.get(question)
        with self._connector.asking:
            if question not in known or (wrong is not None and known[question] == wrong):
                known[question] = self._prompts.secret(self._target.name, question, said)
            self._unlocked[question] = known[question]
        return self._unlocked[question]

    def _password(self, login: str, said: str) -> str | None:
        """Return a known password or ask; the turn to ask is held until the login ends. None if the user gives up."""
        host, user = (self._target.name, login), login.rpartition("@")[0]
        # A flood of output may have pushed out the line about a new key, so then the host is not trusted.
        printed = self._stream.errors()
        trusted = not self._takes_new or (len(printed) < ERRORS_LIMIT // 4 and not _ADDED.search(printed))
        if self._turn is None and not self._passwords.has(host, user, trusted=trusted):
            self._turn = self._asking.enter_context(self._passwords.asking.turn())
        password = self._passwords.take(host, user, trusted=trusted)
        if password is not None:
            self._asking.close()
            self._turn = None
        elif self._turn is not None:
            with self._turn.asking():
                password = self._prompts.secret(self._target.name, f"password of {login}:", said)
        if password is not None:
            self._given[login] = password
        return password

    def _count(self) -> None:
        self._questions += 1
        if self._questions > MOST_QUESTIONS:
            raise HostError(self._target.name, f"the server asks more than {MOST_QUESTIONS} questions during the login")

    def _said(self) -> str:
        """ssh's output since the last question, such as banners and text around the host's questions."""
        before, self._heard = self._heard, self._stream.errors()
        return words_of_host(self._heard.removeprefix(before))


def _stale(target: SshTarget, seconds: float) -> HostError:
    what = f"no answer in {seconds:.0f} s through ssh's open connection {clean(target.control_path)}"
    cure = f"If it is stale, close it by `{target.command} -O exit`; otherwise find out what its login waits for."
    return HostError(target.name, what, cure)


def _is_socket(path: str) -> bool:
    try:
        return bool(path) and Path(path).is_socket()
    except (OSError, ValueError):
        return False


def _failure(target: SshTarget, said: str) -> HostError:
    """Turn ssh's error output `said` into the same error that the built-in transport raises."""
    name, try_it = target.name, f"Try `{target.command}`; once that works, so does disttui."
    if match := re.search(r"^Offending .* key in (.+):(\d+)\s*$", said, re.MULTILINE):
        file, line = clean(match[1]), match[2]
        what = f"its host key has changed: it does not match {file}:{line}; someone may be intercepting the connection"
        known = lookup_name(target.hostname, target.port, target.host_key_alias)
        cure = f"If the host was reinstalled, remove the old key with `ssh-keygen -R '{known}' -f '{file}'`."
        return HostError(name, what, cure)
    before, failed, _ = said.partition("Host key verification failed.")
    if failed:
        why = clean(before.strip().rpartition("\n")[2])
        why = f" ({why})" if why else ""
        if re.search(r"REVOKED|revoked by file", before):
            what, cure = "its host key is revoked", "Do not connect; ask the host's administrator."
        else:
            what = "its host key is unknown"
            cure = (
                f"Compare the fingerprint, then run `{target.command}` once and accept, or add --accept-new-host-keys."
            )
        return HostError(name, what + why, cure)
    if match := _NO_MATCH.search(said):
        # The jump host's ssh prints its error before the ssh that waits for it ends with one of its own.
        jump = "jump host: " if target.proxy_jump and "UNKNOWN port" in said[match.end() :] else ""
        what = f"{jump}no SSH handshake with {match['host']}:{match['port']}: no acceptable {_KINDS[match['kind']]}"
        return HostError(name, f"{what}; it offers {clean(match['offer'].strip())}", "Update its SSH server.")
    if match := re.search(r"(?:(\S+): )?Permission denied(?: \(([\w,-]+)\))?", said):
        what = f"login as {target.place} refused"
        if target.proxy_jump and "UNKNOWN port" in said[match.end() :]:
            what = f"jump host: login as {clean(match[1] or '?')} refused"
        what += f"; the server accepts {match[2].replace(',', ', ')}" if match[2] else ""
        if key := re.search(r'^Load key "(.+)": bad permissions', said, re.MULTILINE):
            what += f"; {clean(key[1])} is not usable: others can read it: chmod 600"
        cure = f"{try_it} A Kerberos ticket may have expired (kinit), an agent may lack the key (ssh-add)."
        return HostError(name, what, cure)
    if TOO_MANY in said:
        return HostError(name, f"login as {target.place} refused: too many authentication failures", TOO_MANY_CURE)
    if unconnected := _unconnected(target, said):
        return unconnected
    lines = " / ".join(clean(line) for line in said.strip().split("\n")[-3:])
    kind = LinkLostError if _BROKE.search(said) else HostError
    return kind(name, f"ssh: {lines or 'ended without output'}", try_it)


def _unconnected(target: SshTarget, said: str) -> HostError | None:
    """Return the error for a host that ssh could not connect to; None if `said` has another error."""
    if match := re.search(r"Could not resolve hostname (\S+?): (.*)", said):
        return unresolved(target, clean(match[1]), "Temporary failure" in match[2])
    if match := re.search(r"connect to host (\S+) port (\d+): (.+)", said):
        limit, why = target.connect_timeout or CONNECT_LIMIT, clean(match[3].strip())
        kinds = {"Connection refused": ConnectionRefusedError(), "Connection timed out": TimeoutError()}
        return unreachable(target.name, f"{match[1]}:{match[2]}", kinds.get(why, OSError(0, why)), limit)
    if match := re.search(r"^channel \d+: open failed: (.+)", said, re.MULTILINE):
        return unforwarded(target.name, f"{target.hostname}:{target.port}", clean(match[1].strip()))
    return None


_LIMIT = 5.0
"""Seconds to receive a question, which comes from a local process."""
_LARGEST = 256 * 1024
_HELPER = """\
import os, socket, sys
viewer = socket.socket(socket.AF_UNIX)
viewer.connect(sys.argv[1])
viewer.sendall(os.fsencode(os.environ.get("SSH_ASKPASS_PROMPT", "") + "\\0" + sys.argv[2]))
viewer.shutdown(socket.SHUT_WR)
answer = b""
while piece := viewer.recv(4096):
    answer += piece
sys.stdout.buffer.write(answer[1:] + b"\\n")
sys.exit(not answer)
"""
"""Exits with 1 if there is no answer, as when the viewer was killed."""


class Askpass:
    """Context manager that receives the questions of one ssh process through a socket that only this user can reach."""

    def __init__(self) -> None:
        # The path of a socket has at most 107 bytes.
        long = len(os.fsencode(tempfile.gettempdir())) > 60
        self._folder = Path(tempfile.mkdtemp(prefix="disttui-ask-", dir="/tmp" if long else None))  # noqa: S108 - a new folder
        self._listener = socket.socket(socket.AF_UNIX)
        place = str(self._folder / "socket")
        self._listener.bind(place)
        self._listener.listen()
        self._listener.setblocking(False)
        words = [sys.executable, "-IS", "-c", _HELPER, place]
        script = self._folder / "askpass"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$1"\n')
        script.chmod(0o700)
        self.environ: Mapping[str, str] = {**os.environ, "SSH_ASKPASS": str(script), "SSH_ASKPASS_REQUIRE": "force"}
        """Environment for the ssh process."""

    def __enter__(self) -> Askpass:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def serve(self, answer: Callable[[str, bool], str | None]) -> None:
        """Answer a pending question, if any. `answer` gets its text, and whether it is a notice without an answer."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        with connection, suppress(OSError):
            connection.settimeout(_LIMIT)
            asked = b""
            while len(asked) <= _LARGEST and (piece := connection.recv(4096)):
                asked += piece
            hint, _, question = asked.decode(errors="replace").partition("\0")
            given = answer(question.strip(), hint == "none")
            if given is not None:
                connection.sendall(f"={given}".encode())
