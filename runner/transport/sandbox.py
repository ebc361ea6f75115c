"""Hosts played on this machine, so that the real path can be tried without a second one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko.ed25519key import Ed25519Key

from runner import private
from runner.address import Address
from runner.errors import InputError
from runner.transport.base import Connection, RefusePrompts
from runner.transport.sandbox_server import LoopbackServer
from runner.transport.ssh import SshConnector

_USER = "sandbox"
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
    """Plays every host by an SSH server of its own on loopback, reached through the real SSH code.

    Keys are made for this one use. Every host has its own home; processes that a command leaves behind live on, as they
    would on a real host.

    Args:
        names: The hosts' names in the profile.
        folder: Where the homes are made, and stay. None: a temporary folder, gone when the sandbox is closed.
    """

    homes: dict[str, Path]
    """Host name → its home folder."""
    config: Path
    """The ssh configuration that leads to the hosts; as ssh's -F, for further connectors.

    It is locked while the sandbox lives, so that others can see whether it does.
    """

    def __init__(self, names: Sequence[str], folder: Path | None = None) -> None:
        self._private = Path(tempfile.mkdtemp(prefix="disttui-sandbox-"))
        self.config = self._private / "config"
        root = folder if folder is not None else self._private / "homes"
        self.homes = {}
        self._servers: list[LoopbackServer] = []
        try:
            self._build(list(dict.fromkeys(names)), root)
            self._held = os.open(self.config, os.O_RDONLY | os.O_CLOEXEC)
            private.lock(self._held, 0.0)
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

    def connect(self, address: Address) -> Connection:
        """Reach a host by its name alone: its user and port mean nothing here."""
        if address.host not in self.homes:
            raise InputError(f"{address.host}: no host of this sandbox", "Take a name of the profile.")
        return self._connector.connect(Address(address.host))

    def close(self) -> None:
        """Close the connections and servers, end the commands that still run, remove the temporary folder."""
        if hasattr(self, "_connector"):
            self._connector.close()
        for server in self._servers:
            server.close()
        if hasattr(self, "_held"):
            os.close(self._held)
            del self._held
        shutil.rmtree(self._private, ignore_errors=True)

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


def _new_key(path: Path) -> Ed25519Key:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return Ed25519Key.from_private_key_file(str(path))
