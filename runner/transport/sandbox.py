"""Simulated hosts: SSH servers on this machine, to try the real transport without a second machine."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
    cMSG_CHANNEL_SUCCESS,
)
from paramiko.ed25519key import Ed25519Key

from disttui.runner import private
from disttui.runner.address import Address
from disttui.runner.errors import InputError
from disttui.runner.transport.base import HostConnection, RefusePrompts
from disttui.runner.transport.guarded import GuardedPacketizer
from disttui.runner.transport.ssh import SshConnector

_PIECE = 64 * 1024
_KEPT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_EXIT_LIMIT = 1.0
"""Seconds that a command may take to end after its client has disconnected."""
_STRANGERS = 64
"""Most connections that are not logged in, since every user of this machine can open some."""
_LOGIN_LIMIT = 60.0


class LoginSession(paramiko.ServerInterface):
    """Permissions of one client: log in with the one accepted key and run commands."""

    def __init__(self, server: LoopbackServer, transport: _ServerTransport) -> None:
        self._server = server
        self._transport = transport

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = username == self._server.user and key.asbytes() == self._server.user_key.asbytes()
        return AUTH_SUCCESSFUL if known else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        _start(self._server.execute, self._transport, channel, command)
        return True


class LoopbackServer:
    """An SSH server that listens on a free port of 127.0.0.1 as soon as it is created.

    Args:
        host_key: Its host key.
        user_key: The only key that is accepted.
        home: Home and working folder of its commands.
        user: The only user name that is accepted.
    """

    session: type[LoginSession] = LoginSession

    def __init__(self, host_key: paramiko.PKey, user_key: paramiko.PKey, home: Path, user: str) -> None:
        self.user = user
        self.user_key = user_key
        self._host_key = host_key
        self._home = home
        self._transports: list[_ServerTransport] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"sandbox {home.name}", daemon=True).start()

    def close(self) -> None:
        """Close all connections and end their commands."""
        # A shutdown wakes the accept call; close alone would not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            transports, processes = list(self._transports), list(self._processes)
        for transport in transports:
            transport.close()
        for process in processes:
            _end(process)

    def execute(self, transport: _ServerTransport, channel: paramiko.Channel, command: bytes) -> None:
        """Run one command and relay its input and output until it ends."""
        transport.replied.acquire()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self._home,
            env=self._environment(),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with self._lock:
            self._processes.add(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        outputs = [
            _start(_pump_out, process.stdout, channel.sendall),
            _start(_pump_out, process.stderr, channel.sendall_stderr),
        ]
        _start(_pump_in, channel, process.stdin)
        _start(_end_with, channel, process)
        for thread in outputs:
            thread.join()
        status = process.wait()
        with self._lock:
            self._processes.discard(process)
        with suppress(OSError, EOFError, paramiko.SSHException):
            if status >= 0:
                channel.send_exit_status(status)
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._transports = [known for known in self._transports if known.is_active()]
                strangers = [one for one in self._transports if not (one.is_authenticated() or one.packetizer.closed)]
                if len(strangers) >= _STRANGERS:
                    strangers[0].packetizer.close()  # the oldest, since a client with the key logs in immediately
                transport = _ServerTransport(connection)
                self._transports.append(transport)
            transport.add_server_key(self._host_key)
            transport.start_server(event=threading.Event(), server=self.session(self, transport))

    def _environment(self) -> dict[str, str]:
        user = getpass.getuser()
        # disttui's own interpreter has torch even if its environment is not activated.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        own = {"HOME": str(self._home), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "PATH": path}
        return {**kept, **own}


class _ServerTransport(paramiko.Transport):
    """Bounds what a client may send before its login, and counts confirmed requests: a command must not end before
    its client knows that it has started."""

    packetizer: GuardedPacketizer

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, packetizer_class=GuardedPacketizer)
        self.packetizer.give(_LOGIN_LIMIT)
        self.replied = threading.Semaphore(0)

    def _auth_trigger(self) -> None:
        super()._auth_trigger()  # type: ignore[misc]
        self.packetizer.trust()
        self.packetizer.give(None)

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)  # type: ignore[misc]
        if data.asbytes()[:1] == cMSG_CHANNEL_SUCCESS:
            self.replied.release()


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _pump_out(source: IO[bytes], send: Callable[[bytes], None]) -> None:
    with source, suppress(OSError, EOFError, paramiko.SSHException):
        while data := source.read(_PIECE):
            send(data)


def _pump_in(channel: paramiko.Channel, sink: IO[bytes]) -> None:
    wanted = True
    with sink, suppress(OSError, EOFError, paramiko.SSHException):
        while data := channel.recv(_PIECE):
            # Input that the command does not read is discarded, or its client would wait forever.
            wanted = wanted and _write(sink, data)


def _write(sink: IO[bytes], data: bytes) -> bool:
    try:
        while data:
            data = data[sink.write(data) :]
    except OSError:
        return False
    return True


def _end_with(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        if channel.closed:
            _end(process)
            return
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_EXIT_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()


_REMOVE = 'if read -r _; then exec rm -rf -- "$1"; fi; for _ in 1 2 3 4 5 6 7 8; do rm -rf -- "$1"; sleep 1; done'
"""Removes a sandbox's folder with its runs, on request or if the process that made it is killed. In the latter case
repeatedly, because a run may write until it has ended."""
_USER = "sandbox"
_PREFIX = "disttui-sandbox-"
_SAFE = re.compile(r"[^\w.-]")
_CONFIG = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile "{folder}/key"
  UserKnownHostsFile "{folder}/known_hosts"
"""
_COMMON = """\
Host *
  IdentitiesOnly yes
  IdentityAgent none
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  PreferredAuthentications publickey
"""


class Sandbox:
    """Simulates each host by its own SSH server on loopback, which is used through the real SSH code.

    Keys are created for each sandbox. Every host has its own home folder. Background processes of a command keep
    running, as they would on a real host.

    Args:
        names: The hosts' names in the profile.
        folder: Folder for the homes, which is kept. None: a temporary folder, removed when the sandbox is closed.
    """

    homes: dict[str, Path]
    """Host name → its home folder."""
    config: Path
    """The ssh configuration of the hosts, for further connectors (as ssh's -F).

    It is locked while the sandbox exists, so that other processes can check that.
    """

    def __init__(self, names: Sequence[str], folder: Path | None = None) -> None:
        _remove_killed()
        self._private = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE, "sh", str(self._private)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.config = self._private / "config"
        root = folder if folder is not None else self._private / "homes"
        self.homes = {}
        self._servers: list[LoopbackServer] = []
        try:
            self._held = os.open(self.config, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            private.lock(self._held, 0.0)
            self._build(list(dict.fromkeys(names)), root)
        except BaseException:
            self.close()
            raise
        self._connector = SshConnector(str(self.config), RefusePrompts())

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self, address: Address) -> HostConnection:
        """Connect to a host by name; user and port are ignored. Raises InputError for an unknown host."""
        if address.host not in self.homes:
            raise InputError(f"{address.host}: not a host of this sandbox", "Use a host of the profile.")
        return self._connector.connect(Address(address.host))

    def close(self) -> None:
        """Close connections and servers, end running commands and remove the temporary folder."""
        if hasattr(self, "_connector"):
            self._connector.close()
        for server in self._servers:
            server.close()
        if hasattr(self, "_held"):
            os.close(self._held)
            del self._held
        self._remover.communicate(b"\n")

    def _build(self, names: list[str], root: Path) -> None:
        user_key = _new_key(self._private / "key")
        config, known = "", ""
        for index, name in enumerate(names):
            home = root / (name if not _SAFE.search(name) else f"{_SAFE.sub('_', name)}-{index}")
            private.make_folder(home)
            host_key = _new_key(self._private / f"host-key-{index}")
            server = LoopbackServer(host_key, user_key, home, _USER)
            self._servers.append(server)
            self.homes[name] = home
            config += _CONFIG.format(name=name, port=server.port, user=_USER, folder=self._private)
            known += f"[127.0.0.1]:{server.port} {host_key.get_name()} {host_key.get_base64()}\n"
        self.config.write_text(config + _COMMON)
        (self._private / "known_hosts").write_text(known)


def _remove_killed() -> None:
    """Remove the temporary folders of this user's sandboxes whose processes were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            # A sandbox locks its configuration before it writes to it, so one being built is either empty or locked.
            written = folder.lstat().st_uid == os.getuid() and (folder / "config").lstat().st_size
            if written and not private.in_use(folder / "config"):
                shutil.rmtree(folder, ignore_errors=True)


def _new_key(path: Path) -> Ed25519Key:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return Ed25519Key.from_private_key_file(str(path))
