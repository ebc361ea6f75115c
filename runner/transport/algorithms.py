"""Names of SSH algorithms: the lists of ssh_config, and OpenSSH's defaults where a list is not set."""

from __future__ import annotations

import fnmatch

CERTIFICATE = "-cert-v01@openssh.com"
"""What the name of a key's type ends with where a certificate comes with the key."""

SHA1 = "ssh-rsa"
"""Signatures that are not taken even where the settings allow them; keys of this type sign with SHA-2."""

_PLAIN_KEYS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
_KEYS = (*(name + CERTIFICATE for name in _PLAIN_KEYS), *_PLAIN_KEYS)

DEFAULTS: dict[str, tuple[str, ...]] = {
    "ciphers": (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ),
    "macs": (
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
        "hmac-sha1",
    ),
    "kexalgorithms": (
        "mlkem768x25519-sha256",
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "diffie-hellman-group-exchange-sha256",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group14-sha256",
    ),
    "hostkeyalgorithms": _KEYS,
    "pubkeyacceptedalgorithms": (*_KEYS, "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
    "casignaturealgorithms": _PLAIN_KEYS,
}
"""By keyword of ssh_config: what OpenSSH 10 takes by default, as far as paramiko has it (agents have `sk-` keys)."""

LEAST_RSA_BITS = 1024
"""OpenSSH's default for RequiredRSASize; it never takes less."""

_FAST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_CTR_FIRST = ("aes128-ctr", "aes192-ctr", "aes256-ctr", *_FAST)


def algorithms(keyword: str, value: str) -> tuple[str, ...]:
    """Return the names that a list of ssh_config stands for; `+`, `-` and `^` change the default list."""
    default = DEFAULTS[keyword]
    sign, names = (value[0], value[1:]) if value[:1] in ("+", "-", "^") else ("", value)
    patterns = [name for name in names.split(",") if name]
    if sign == "-":
        return tuple(name for name in default if not _matches(name, patterns))
    listed: list[str] = []
    for pattern in patterns:
        listed += fnmatch.filter(default, pattern) if "*" in pattern or "?" in pattern else [pattern]
    if sign == "+":
        listed = [*default, *listed]
    elif sign == "^":
        listed = [*listed, *default]
    return tuple(dict.fromkeys(listed))


def by_speed(ciphers: tuple[str, ...]) -> tuple[str, ...]:
    """Put AES-GCM, the fastest here, before AES-CTR, unless the configuration sets an order of its own."""
    if ciphers != tuple(name for name in _CTR_FIRST if name in ciphers):
        return ciphers
    return (*(name for name in _FAST if name in ciphers), *(name for name in ciphers if name not in _FAST))


def plain(algorithm: str) -> str:
    """The name of an algorithm without its certificate."""
    return algorithm.removesuffix(CERTIFICATE)


def key_type(algorithm: str) -> str:
    """The type of key that goes with a signature algorithm: `ssh-rsa` for `rsa-sha2-512`."""
    if not plain(algorithm).startswith("rsa-sha2-"):
        return algorithm
    return "ssh-rsa" + (CERTIFICATE if algorithm.endswith(CERTIFICATE) else "")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
