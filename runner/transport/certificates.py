"""Host certificates: what one says, and whether its authority has signed it for this host and this day."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from paramiko.ecdsakey import ECDSAKey
from paramiko.ed25519key import Ed25519Key
from paramiko.message import Message
from paramiko.pkey import PKey
from paramiko.rsakey import RSAKey

from runner.transport.algorithms import CERTIFICATE, SHA1

_HOST = 2
_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2}
"""By type of key: how many strings the public key has."""
_KEYS: dict[str, type[PKey]] = {"ssh-ed25519": Ed25519Key, "ssh-rsa": RSAKey}


class UnusableCertificateError(Exception):
    """Why a certificate does not speak for a host."""


@dataclass(frozen=True)
class Certificate:
    """A certificate as a host shows it (PROTOCOL.certkeys of OpenSSH)."""

    kind: int
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: bytes
    authority: bytes
    """The public key of the authority."""
    signed: bytes
    signature: bytes

    def verify(self, hostname: str, algorithms: tuple[str, ...], least_rsa_bits: int) -> None:
        """Check that it is valid for `hostname` now.

        Args:
            algorithms: Signature algorithms that an authority may use.
            least_rsa_bits: Fewest bits of an authority's RSA key.

        Raises:
            UnusableCertificateError: It is not.
        """
        if self.kind != _HOST:
            raise UnusableCertificateError("it is no host's certificate")
        if not self.valid_after <= time.time() < self.valid_before:
            raise UnusableCertificateError("it is not valid today")
        if hostname not in self.principals:
            raise UnusableCertificateError(f"it does not name {hostname}")
        if self.critical:
            raise UnusableCertificateError("it has critical options, which no host's certificate may have")
        if key_type(self.signature) not in algorithms or key_type(self.signature) == SHA1:
            raise UnusableCertificateError("CASignatureAlgorithms does not allow its signature")
        bits = rsa_bits(self.authority)
        if bits is not None and bits < least_rsa_bits:
            raise UnusableCertificateError(f"its authority's RSA key has only {bits} bits")
        try:
            genuine = _key(self.authority).verify_ssh_sig(self.signed, Message(self.signature))
        except Exception as error:
            raise UnusableCertificateError(f"its authority's key cannot be used: {error}") from None
        if not genuine:
            raise UnusableCertificateError("its authority has not signed it")


def read_certificate(blob: bytes) -> Certificate | None:
    """Read what a host has shown; None where that is a plain key. Raises UnusableCertificateError."""
    kind = key_type(blob)
    if not kind.endswith(CERTIFICATE):
        return None
    try:
        rest = blob
        for _ in range(2 + _FIELDS[kind.removesuffix(CERTIFICATE)]):  # its type, a nonce, the key
            _, rest = take(rest)
        _, number, rest = rest[:8], struct.unpack(">I", rest[8:12])[0], rest[12:]
        _, rest = take(rest)  # the name that the authority has given it
        names, rest = take(rest)
        after, before = struct.unpack(">QQ", rest[:16])
        critical, rest = take(rest[16:])
        for _ in range(2):  # extensions, a reserved field
            _, rest = take(rest)
        authority, rest = take(rest)
        signed = blob[: len(blob) - len(rest)]
        signature, rest = take(rest)
        principals = []
        while names:
            name, names = take(names)
            principals.append(name.decode())
    except (ValueError, KeyError, struct.error):
        raise UnusableCertificateError("it is damaged, or of an unknown kind") from None
    if rest:
        raise UnusableCertificateError("bytes follow its signature")
    return Certificate(number, tuple(principals), after, before, critical, authority, signed, signature)


def take(data: bytes) -> tuple[bytes, bytes]:
    """Return the first string of SSH's encoding and what follows it. Raises ValueError, struct.error."""
    (size,) = struct.unpack(">I", data[:4])
    if len(data) < 4 + size:
        raise ValueError("cut off")
    return data[4 : 4 + size], data[4 + size :]


def key_type(blob: bytes) -> str:
    """The type that a key, a certificate or a signature begins with; "" where there is none."""
    try:
        return take(blob)[0].decode("ascii")
    except (ValueError, struct.error):
        return ""


def rsa_bits(blob: bytes) -> int | None:
    """The size of an RSA key, also of one in a certificate; None for other keys. Raises ValueError, struct.error."""
    kind = key_type(blob)
    if kind not in ("ssh-rsa", "ssh-rsa" + CERTIFICATE):
        return None
    rest = take(blob)[1]
    for _ in range(2 if kind.endswith(CERTIFICATE) else 1):
        _, rest = take(rest)
    return int.from_bytes(take(rest)[0], "big").bit_length()


def _key(blob: bytes) -> PKey:
    kind = key_type(blob)
    if kind.startswith("ecdsa-sha2-"):
        return ECDSAKey(msg=Message(blob))
    if kind not in _KEYS:
        raise ValueError(f"of type {kind or 'unknown'}")
    return _KEYS[kind](msg=Message(blob))
