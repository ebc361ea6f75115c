"""Names of SSH algorithms and types of SSH keys."""

from __future__ import annotations

import struct

CERTIFICATE = "-cert-v01@openssh.com"
"""Suffix of key types with a certificate."""

SHA1 = "ssh-rsa"
"""Signature algorithm that is refused even if the settings allow it; keys of this type sign with SHA-2."""

LEAST_RSA_BITS = 1024
"""OpenSSH's default and minimum for RequiredRSASize."""

_FAST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_CTR_FIRST = ("aes128-ctr", "aes192-ctr", "aes256-ctr", *_FAST)


def by_speed(ciphers: tuple[str, ...]) -> tuple[str, ...]:
    """Put AES-GCM, which is fastest here, before AES-CTR, unless the configuration changes the default order."""
    if ciphers != tuple(name for name in _CTR_FIRST if name in ciphers):
        return ciphers
    return (*(name for name in _FAST if name in ciphers), *(name for name in ciphers if name not in _FAST))


def plain(algorithm: str) -> str:
    """The name of an algorithm without the suffix for certificates."""
    return algorithm.removesuffix(CERTIFICATE)


def key_type(algorithm: str) -> str:
    """The key type of a signature algorithm, such as `ssh-rsa` for `rsa-sha2-512`."""
    if not plain(algorithm).startswith("rsa-sha2-"):
        return algorithm
    return "ssh-rsa" + (CERTIFICATE if algorithm.endswith(CERTIFICATE) else "")


def take(data: bytes) -> tuple[bytes, bytes]:
    """Split SSH wire data (RFC 4251) after its first string; return both parts. Raises ValueError, struct.error."""
    (size,) = struct.unpack(">I", data[:4])
    if len(data) < 4 + size:
        raise ValueError("cut off")
    return data[4 : 4 + size], data[4 + size :]


def blob_type(blob: bytes) -> str:
    """The type name at the start of a key, certificate or signature; "" if it is damaged."""
    try:
        return take(blob)[0].decode("ascii")
    except (ValueError, struct.error):
        return ""


def rsa_bits(blob: bytes) -> int | None:
    """Bits of an RSA key, or of the one in a certificate; None for other types, 0 if it is damaged."""
    kind = blob_type(blob)
    if kind not in ("ssh-rsa", "ssh-rsa" + CERTIFICATE):
        return None
    try:
        rest = take(blob)[1]
        for _ in range(2 if kind.endswith(CERTIFICATE) else 1):
            _, rest = take(rest)
        return int.from_bytes(take(rest)[0], "big").bit_length()
    except (ValueError, struct.error):
        return 0
