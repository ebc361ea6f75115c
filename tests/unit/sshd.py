"""Real sshds on loopback for the tests of the transport."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

import pytest

from tests.unit.waiting import wait_for

USER = getpass.getuser()
_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """One sshd with its own keys that accepts the keys in its authorized_keys.

    Args:
        host_key: The one key to show, where it is not to be an Ed25519 and an RSA key.
    """

    def __init__(self, folder: Path, client_key: Path, extra: str = "", host_key: Path | None = None) -> None:
        if _SSHD is None:
            pytest.skip("needs sshd")
        folder.mkdir(parents=True)
        self.folder = folder
        self.key = host_key or new_key(folder / "host_ed25519")
        self.rsa_key = host_key or _rsa_key(folder / "host_rsa")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_bytes(public(client_key))
        self.port = free_port()
        self.log = folder / "log"
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\n"
            + "".join(f"HostKey {key}\n" for key in dict.fromkeys((self.key, self.rsa_key)))
            + f"AuthorizedKeysFile {self.authorized}\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 200\nMaxSessions 200\n"
            f"PidFile none\nLogLevel VERBOSE\n{extra}\n"
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([_SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        wait_for(self._listens)

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return b"Server listening" in self.log.read_bytes()

    @property
    def logins(self) -> int:
        """Connections that have logged in so far."""
        return self.log.read_bytes().count(b"Accepted publickey for ")

    def sessions(self) -> list[int]:
        """Processes that serve a connection: one where root has logged in, else one of more rights and one of fewer."""
        first = children(self.process.pid)
        return first + [pid for parent in first for pid in children(parent) if _name(pid).startswith("sshd")]

    def busy(self) -> socket.socket:
        """Let it take one login at a time; returns the connection that is the one."""
        config = self.folder / "sshd_config"
        config.write_text(f"MaxStartups 1\n{config.read_text()}")
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.log.read_bytes().count(b"Server listening") == 2)
        held = socket.create_connection(("127.0.0.1", self.port))
        assert held.recv(4) == b"SSH-"
        return held

    def known(self, key: Path | None = None) -> str:
        """The line of known_hosts for this server."""
        return f"[127.0.0.1]:{self.port} {public(key or self.key).decode()}"

    def block(self, name: str, more: str = "") -> str:
        """The Host block of ssh_config for this server."""
        return f"Host {name}\n  HostName 127.0.0.1\n  Port {self.port}\n{more}\n"

    def close(self) -> None:
        for pid in (*self.sessions(), self.process.pid):
            for child in (*children(pid), pid):
                try:
                    os.kill(child, 9)
                except ProcessLookupError:
                    continue
        self.process.wait()


class Place:
    """A client's folder: keys, known_hosts, ssh_config, and the servers of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = new_key(folder / "id_ed25519")
        self.known_hosts = folder / "known_hosts"
        self.config = folder / "config"
        self._servers: list[Sshd] = []

    def sshd(self, name: str, extra: str = "", host_key: Path | None = None) -> Sshd:
        server = Sshd(self.folder / name, self.key, extra, host_key)
        self._servers.append(server)
        return server

    def write(self, blocks: str, trusted: str | None = None, common: str = "") -> str:
        """Write ssh_config (and known_hosts: all servers, unless `trusted` is given); return its path."""
        if trusted is None:
            trusted = "".join(server.known() for server in self._servers)
        self.known_hosts.write_text(trusted)
        self.config.write_text(
            f"{blocks}\nHost *\n{common}\n  User {USER}\n  IdentityFile {self.key}\n  IdentityAgent none\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        )
        return str(self.config)

    def close(self) -> None:
        for server in self._servers:
            server.close()


class Answers:
    """Prompts that answer from a list and remember what they were asked."""

    def __init__(self, *secrets: str | None, accept: bool = False, share: bool = False) -> None:
        self.questions: list[str] = []
        self.said: list[str] = []
        """What hosts have said with each question, or without one."""
        self.shared: list[tuple[str, int]] = []
        self._secrets = list(secrets)
        self._accept = accept
        self._share = share
        self._lock = threading.Lock()

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        with self._lock:
            self.questions.append(f"{host}: {question}")
            self.said.append(said)
            return self._secrets.pop(0) if self._secrets else None

    def tell(self, host: str, said: str) -> None:
        self.said.append(said)

    def share_password(self, host: str, others: int) -> bool:
        self.shared.append((host, others))
        return self._share

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        with self._lock:
            self.questions.append(f"{host}: {key_type} {fingerprint}")
            return self._accept


def new_key(path: Path, kind: str = "ed25519", passphrase: str = "", rsa_bits: int = 2048) -> Path:
    """Make a key pair; returns the private key's path."""
    bits = ["-b", str(rsa_bits)] if kind == "rsa" else []
    ssh_keygen("-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", str(path))
    return path


def _rsa_key(path: Path) -> Path:
    """The RSA key pair of all servers: to find one takes 0.15 s of CPU time, and which server has it is never asked."""
    for end, text in zip(("", ".pub"), _found_once(), strict=True):
        Path(f"{path}{end}").write_bytes(text)
    path.chmod(0o600)
    return path


@cache
def _found_once() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        key = new_key(Path(folder) / "key", "rsa")
        return key.read_bytes(), public(key)


def ssh_keygen(*arguments: str) -> str:
    """Run ssh-keygen; returns what it prints."""
    done = subprocess.run(["ssh-keygen", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode()


def public(key: Path) -> bytes:
    """The line of a key's public half."""
    return Path(f"{key}.pub").read_bytes()


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
