"""RevokedHostKeys: keys that no host may show, as a list of public keys or as OpenSSH's own format (KRL)."""

from __future__ import annotations

import base64
import binascii
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from runner.transport.certificates import key_type

_KRL = b"SSHKRL\n\x00"
_LIMIT = 10.0
_REVOKED, _FINE = 1, 0


class UnreadableError(Exception):
    """A file of revoked keys that cannot be used, and why: then, as with ssh, no host key is good."""


def is_revoked(file: str, blobs: Iterable[bytes]) -> bool:
    """Whether `file` lists one of the keys or certificates. Raises UnreadableError."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or "cannot be read") from None
    if data.startswith(_KRL):
        return any(_in_krl(file, blob) for blob in blobs)
    listed = set()
    for number, line in enumerate(data.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        try:
            listed.add(_key(words))
        except (ValueError, binascii.Error):
            raise UnreadableError(f"line {number} is no public key") from None
    return any(blob in listed for blob in blobs)


def _key(words: list[bytes]) -> bytes:
    for kind, text in itertools.pairwise(words):
        if kind.startswith((b"ssh-", b"ecdsa-", b"sk-")):
            blob = base64.b64decode(text, validate=True)
            if key_type(blob) == kind.decode():
                return blob
    raise ValueError


def _in_krl(file: str, blob: bytes) -> bool:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UnreadableError("it is a KRL, which takes ssh-keygen to read, and there is none here")
    with tempfile.NamedTemporaryFile(suffix=".pub") as key:
        key.write(f"{key_type(blob)} {base64.b64encode(blob).decode()}\n".encode())
        key.flush()
        argv = [program, "-Q", "-f", file, key.name]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnreadableError(f"ssh-keygen could not look into it: {error}") from None
    if done.returncode not in (_REVOKED, _FINE):
        raise UnreadableError(f"ssh-keygen says: {done.stderr.decode(errors='replace').strip()}")
    return done.returncode == _REVOKED
