"""Private keys: those in files, with their certificates, and those that an agent holds."""

from __future__ import annotations

import base64
import binascii
import copy
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramiko.agent import AgentKey, AgentSSH
from paramiko.ecdsakey import ECDSAKey
from paramiko.ed25519key import Ed25519Key
from paramiko.pkey import PKey
from paramiko.rsakey import RSAKey
from paramiko.ssh_exception import SSHException

from disttui.runner.transport.algorithms import take

_KINDS: dict[str, type[PKey]] = {"ssh-ed25519": Ed25519Key, "ssh-rsa": RSAKey}
_PEM: dict[bytes, type[PKey]] = {b"RSA": RSAKey, b"EC": ECDSAKey}
_PUBLIC = re.compile(rb"(ssh|ecdsa|sk)-[a-z0-9@.-]+")
_MAGIC = b"openssh-key-v1\x00"
# Long enough for a person to confirm the use of a key (ssh-add -c) or to touch a hardware key.
_SIGN_LIMIT = 60.0
_TRIES = 3


class UnusableKeyError(Exception):
    """A key file that cannot be used, and why."""


@dataclass(frozen=True)
class KeyFile:
    """A private key file, read but not decrypted.

    `blob` is the public key where the file has it unencrypted (None for the older PEM formats).
    """

    path: str
    kind: type[PKey]
    encrypted: bool
    blob: bytes | None


def read_key_file(path: str) -> KeyFile | None:
    """Read a private key file without decrypting it; None where it does not exist. Raises UnusableKeyError."""
    try:
        data = Path(path).read_bytes()
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableKeyError(error.strerror or "cannot be read") from None
    first = data.partition(b"\n")[0].strip()
    if _PUBLIC.match(first):
        return None
    if mode & 0o077:
        raise UnusableKeyError("others may read it: chmod 600")
    if first == b"-----BEGIN OPENSSH PRIVATE KEY-----":
        return _openssh(path, data)
    for word, kind in _PEM.items():
        if first == b"-----BEGIN " + word + b" PRIVATE KEY-----":
            return KeyFile(path, kind, b"ENCRYPTED" in data, None)
    raise UnusableKeyError("not a format known here; `ssh-keygen -p -f` rewrites it")


def public_blob(path: str) -> bytes | None:
    """The public key that an IdentityFile names: the file itself or `<path>.pub`, for keys that an agent holds."""
    for file in (path, f"{path}.pub"):
        try:
            words = Path(file).read_bytes().split(None, 2)
            if len(words) > 1 and _PUBLIC.match(words[0]):
                return base64.b64decode(words[1], validate=True)
        except (OSError, binascii.Error):
            continue
    return None


def _openssh(path: str, data: bytes) -> KeyFile:
    try:
        raw = base64.b64decode(b"".join(data.strip().splitlines()[1:-1]), validate=True)
        if not raw.startswith(_MAGIC):
            raise ValueError
        rest = raw[len(_MAGIC) :]
        cipher, rest = take(rest)
        _, rest = take(rest)
        _, rest = take(rest)
        blob, _ = take(rest[4:])
        name = take(blob)[0].decode("ascii")
    except (ValueError, struct.error, binascii.Error):
        raise UnusableKeyError("damaged") from None
    kind = ECDSAKey if name.startswith("ecdsa-sha2-") else _KINDS.get(name)
    if kind is None:
        raise UnusableKeyError(f"a key of type {name} works only through an agent: ssh-add it")
    return KeyFile(path, kind, cipher != b"none", blob)


class KeyRing:
    """Decrypted keys of this process: a passphrase is asked for once per file, however many hosts use the key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, PKey | str] = {}

    def load(self, file: KeyFile, ask: Callable[[str], str | None]) -> PKey:
        """Return the private key; `ask` is called with a question for its passphrase. Raises UnusableKeyError."""
        with self._lock:
            if file.path not in self._keys:
                try:
                    self._keys[file.path] = _decrypt(file, ask) if file.encrypted else _load(file, None)
                except UnusableKeyError as problem:
                    self._keys[file.path] = str(problem)
            found = self._keys[file.path]
        if isinstance(found, str):
            raise UnusableKeyError(found)
        return found


def _decrypt(file: KeyFile, ask: Callable[[str], str | None]) -> PKey:
    for _ in range(_TRIES):
        passphrase = ask(f"passphrase of {file.path}:")
        if passphrase is None:
            raise UnusableKeyError("needs a passphrase: ssh-add it")
        try:
            return _load(file, passphrase)
        except UnusableKeyError:
            continue
    raise UnusableKeyError("the passphrase is wrong")


def _load(file: KeyFile, passphrase: str | None) -> PKey:
    try:
        return file.kind.from_private_key_file(file.path, passphrase)
    except (SSHException, OSError, ValueError, TypeError, IndexError) as error:
        raise UnusableKeyError(f"cannot be loaded: {error}") from None


def certified(key: PKey, paths: Sequence[str], certificates: tuple[str, ...]) -> Iterator[PKey]:
    """Yield `key` as each certificate that is about it makes it: `<path>-cert.pub` and the CertificateFiles.

    Args:
        key: From a file or held by an agent.
        paths: The key's files.
    """
    for file in dict.fromkeys((*certificates, *(f"{path}-cert.pub" for path in paths))):
        if not Path(file).is_file():
            continue
        with_certificate = copy.copy(key)
        try:
            with_certificate.load_certificate(file)
            # The certificate holds the public key's fields right behind its nonce.
            fields = take(key.asbytes())[1]
        except (ValueError, SSHException, OSError, struct.error):
            continue
        blob = with_certificate.public_blob
        if blob is not None and fields in blob.key_blob:
            yield with_certificate


class _Agent(AgentSSH):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connect(connection)  # type: ignore[attr-defined]


class _CarefulKey(AgentKey):
    """An agent's key that gives an empty signature where the agent refuses to sign.

    paramiko signs in the connection's own thread, where an exception would end the connection; the server refuses the
    empty signature, and the next key is tried.
    """

    def __copy__(self) -> _CarefulKey:
        return _CarefulKey(self.agent, self.blob, self.comment)

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:
        try:
            return super().sign_ssh_data(data, algorithm)
        except (SSHException, OSError):
            return b""


@contextmanager
def agent_keys(path: str | None) -> Iterator[tuple[AgentKey, ...]]:
    """The keys of the agent at `path`, usable inside the context; none where there is no agent."""
    if path is None:
        yield ()
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5.0)
        try:
            connection.connect(path)
            agent = _Agent(connection)
            keys = tuple(_CarefulKey(agent, key.blob, key.comment) for key in agent.get_keys())
        except (OSError, SSHException):
            keys = ()
        connection.settimeout(_SIGN_LIMIT)
        yield keys
