"""Reads OpenSSH's known_hosts files and checks host keys against them.

A bad line is skipped; the rest of its file still counts.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from disttui.runner import private
from disttui.runner.errors import HostError
from disttui.runner.formatting import amount
from disttui.runner.transport.algorithms import key_type as type_of
from disttui.runner.transport.algorithms import rsa_bits
from disttui.runner.transport.base import NeedsSshError, Prompts
from disttui.runner.transport.ssh_config import SshTarget

DEFAULT_PORT = 22
KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
"""Types of host keys that can be verified here."""

REVOKED = "@revoked"
AUTHORITY = "@cert-authority"


class KeyStatus(Enum):
    """Result of checking a host's key against the files."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class KnownHostsLine:
    """One usable line of a file; `marker` is "", `@revoked` or `@cert-authority`."""

    file: str
    line: int
    marker: str
    hosts: str
    key_type: str
    blob: bytes

    def names(self, name: str) -> bool:
        """Whether this line matches `name`, which is a host in lower case or `[host]:port`."""
        if self.hosts.startswith("|"):
            salt, digest = _hash_parts(self.hosts)
            return hmac.compare_digest(hmac.digest(salt, name.encode(errors="replace"), "sha1"), digest)
        found = False
        for pattern in self.hosts.lower().split(","):
            if pattern.startswith("!"):
                if _pattern(pattern[1:]).fullmatch(name):
                    return False
            elif _pattern(pattern).fullmatch(name):
                found = True
        return found


@dataclass(frozen=True)
class BadLine:
    """A line that was skipped, and the reason."""

    file: str
    line: int
    why: str


@dataclass(frozen=True)
class KeyMatch:
    """A verdict, and the line that it is based on."""

    verdict: KeyStatus
    entry: KnownHostsLine | None = None


class KnownHosts:
    """The known host keys of several files; earlier files take precedence.

    Args:
        files: Paths; files that do not exist or cannot be read count as empty.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.entries: list[KnownHostsLine] = []
        self.bad: list[BadLine] = []
        for file in files:
            entries, bad = _read(file)
            self.entries += entries
            self.bad += bad

    def check(self, name: str, key_type: str, blob: bytes) -> KeyMatch:
        """Check the key that a host has sent; `name` comes from `lookup_name`."""
        about = list(self._about(name))
        for entry in about:
            if entry.marker == REVOKED and entry.blob == blob:
                return KeyMatch(KeyStatus.REVOKED, entry)
        plain = [entry for entry in about if not entry.marker]
        for entry in plain:
            if entry.blob == blob:
                return KeyMatch(KeyStatus.KNOWN, entry)
        # The known key types are offered first, so a host that sends another type no longer has the known key. As in
        # ssh, another key of the bare host says nothing about `[host]:port`, which may be a container or another host.
        own = [entry for entry in plain if entry.key_type in KEY_TYPES and entry.names(name)]
        changed = sorted(own, key=lambda entry: entry.key_type != key_type)
        return KeyMatch(KeyStatus.CHANGED, changed[0]) if changed else KeyMatch(KeyStatus.UNKNOWN)

    def has_authority(self, name: str) -> bool:
        """Whether a line accepts certificates of an authority for `name`."""
        return any(entry.marker == AUTHORITY for entry in self._about(name))

    def key_types(self, name: str) -> list[str]:
        """The types of the known keys of `name`, in the order of the files."""
        return list(dict.fromkeys(entry.key_type for entry in self._about(name) if not entry.marker))

    def _about(self, name: str) -> Iterator[KnownHostsLine]:
        """Yield the lines for `name`; as in ssh, those for the bare host as well if `[host]:port` has no key."""
        found = [entry for entry in self.entries if entry.names(name)]
        if any(not entry.marker for entry in found) or not name.startswith("["):
            yield from found
            return
        bare = name[1:].rpartition("]:")[0]
        yield from found
        yield from (entry for entry in self.entries if entry not in found and entry.names(bare))


def lookup_name(host: str, port: int, alias: str | None) -> str:
    """The name of a host in known_hosts: its HostKeyAlias, else the host, as `[host]:port` for ports other than 22."""
    if alias:
        return alias.lower()
    return host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint as OpenSSH prints it: `SHA256:` and base64 without padding."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).rstrip(b"=").decode()


def hashed(name: str) -> str:
    """The hashed form of `name` for HashKnownHosts, which does not reveal the host."""
    salt = os.urandom(20)
    parts = (salt, hmac.digest(salt, name.encode(errors="replace"), "sha1"))
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in parts)


def append(file: str, name: str, key_type: str, blob: bytes) -> None:
    """Append a key to `file`, which is created (0600, its folder 0700) if it is missing. Raises OSError.

    `name` comes from `lookup_name` or `hashed`.
    """
    path = Path(file)
    private.make_folder(path.parent)
    line = f"{name} {key_type} {base64.b64encode(blob).decode()}\n".encode()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def parse(file: str, data: bytes) -> tuple[list[KnownHostsLine], list[BadLine]]:
    """Split a file's content into usable and bad lines. Never raises."""
    entries: list[KnownHostsLine] = []
    bad: list[BadLine] = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.strip()
        if not line or line.startswith(b"#"):
            continue
        try:
            entries.append(_entry(file, number, line.decode()))
        except ValueError as error:
            bad.append(BadLine(file, number, str(error)))
    return entries, bad


def _entry(file: str, number: int, line: str) -> KnownHostsLine:
    fields = line.split(None, 4)
    marker = fields.pop(0) if line.startswith("@") else ""
    if marker not in ("", REVOKED, AUTHORITY):
        raise ValueError(f"unknown marker {marker}")
    if len(fields) < 3:
        raise ValueError("fewer than three fields")
    hosts, key_type, text = fields[:3]
    try:
        blob = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the key is not base64") from None
    if len(blob) < 4 or blob[4 : 4 + struct.unpack(">I", blob[:4])[0]] != key_type.encode():
        raise ValueError(f"the key is not of type {key_type}")
    if hosts.startswith("|"):
        _hash_parts(hosts)
    return KnownHostsLine(file, number, marker, hosts, key_type, blob)


def _read(file: str) -> tuple[list[KnownHostsLine], list[BadLine]]:
    try:
        stat = os.stat(file)  # noqa: PTH116 - the cache wants plain numbers
        return _parsed(file, stat.st_mtime_ns, stat.st_size, stat.st_ino)
    except OSError:
        return [], []


@lru_cache(maxsize=16)
def _parsed(file: str, mtime: int, size: int, inode: int) -> tuple[list[KnownHostsLine], list[BadLine]]:
    return parse(file, Path(file).read_bytes())


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _hash_parts(hosts: str) -> tuple[bytes, bytes]:
    fields = hosts.split("|")
    if len(fields) != 4 or fields[1] != "1":
        raise ValueError("unknown kind of hashed name")
    try:
        return base64.b64decode(fields[2], validate=True), base64.b64decode(fields[3], validate=True)
    except binascii.Error:
        raise ValueError("the hashed name is not base64") from None


def require_built_in(target: SshTarget) -> None:
    """Raise NeedsSshError if a host has settings that only the ssh program can follow."""
    if target.left_to_ssh:
        raise NeedsSshError(target.name, f"{target.left_to_ssh} of your ssh configuration")
    if _known_hosts(target).has_authority(_name(target)):
        raise NeedsSshError(target.name, "@cert-authority in known_hosts")


def _known_hosts(target: SshTarget) -> KnownHosts:
    return KnownHosts((*target.user_known_hosts, *target.global_known_hosts))


def _name(target: SshTarget) -> str:
    return lookup_name(target.hostname, target.port, target.host_key_alias)


class HostKeyCheck:
    """Checks one host's key against the known_hosts files of its target, at least as strictly as ssh does.

    Args:
        accept_new: Add unknown keys without asking (never changed ones).
        address: The IP address that was dialled, for CheckHostIP; None if a jump host dials.
    """

    def __init__(self, target: SshTarget, prompts: Prompts, accept_new: bool, address: str | None = None) -> None:
        self._target = target
        self._prompts = prompts
        self._accept_new = accept_new or target.strict in ("accept-new", "no")
        self._known = _known_hosts(target)
        self._name = _name(target)
        self._address = lookup_name(address, target.port, None) if address and target.check_host_ip else None
        self.confirmed = True
        """Whether the key was known or confirmed by the user; false if it was accepted without asking."""

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Sort the algorithms of known keys first, so that a host with several keys sends a known one."""
        types = self._known.key_types(self._name)
        return tuple(sorted(algorithms, key=lambda name: types.index(kind) if (kind := type_of(name)) in types else 99))

    def verify(self, key_type: str, blob: bytes) -> None:
        """Return if the key is known or is accepted now. Raises HostError otherwise."""
        self._refuse_short(blob)
        finding = self._known.check(self._name, key_type, blob)
        if self._address is not None:
            by_address = self._known.check(self._address, key_type, blob)
            if by_address.verdict in (KeyStatus.REVOKED, KeyStatus.CHANGED):
                raise self._bad(by_address, key_type, blob)
        if finding.verdict is KeyStatus.KNOWN:
            return
        if finding.verdict is not KeyStatus.UNKNOWN:
            raise self._bad(finding, key_type, blob)
        print_ = fingerprint(blob)
        if not self._accept_new:
            may_ask = self._target.strict != "yes"
            if not (may_ask and self._prompts.accept_host_key(self._target.name, key_type, print_)):
                raise self._unknown(key_type, print_)
        self.confirmed = not self._accept_new
        if self._target.user_known_hosts:
            name = hashed(self._name) if self._target.hash_known_hosts else self._name
            # As in ssh, if the file cannot be written, the user is asked again next time.
            with contextlib.suppress(OSError):
                append(self._target.user_known_hosts[0], name, key_type, blob)

    def _refuse_short(self, blob: bytes) -> None:
        bits = rsa_bits(blob)
        if bits is not None and bits < self._target.required_rsa_size:
            what = f"its RSA host key has only {bits} bits; RequiredRSASize is {self._target.required_rsa_size}"
            raise HostError(self._target.name, what, "Create a longer host key there (`ssh-keygen -A`).")

    def _bad(self, finding: KeyMatch, key_type: str, blob: bytes) -> HostError:
        assert finding.entry is not None
        where = f"{finding.entry.file}:{finding.entry.line}"
        shown = f"{key_type} {fingerprint(blob)}"
        if finding.verdict is KeyStatus.REVOKED:
            what = f"its host key ({shown}) is revoked by {where}"
            return HostError(self._target.name, what, "Do not connect; ask the host's administrator.")
        what = (
            f"its host key has changed: {shown} does not match {where} "
            f"({finding.entry.key_type} {fingerprint(finding.entry.blob)}); someone may be intercepting the connection"
        )
        name = self._address if self._address and finding.entry.names(self._address) else self._name
        cure = (
            f"If the host was reinstalled, remove the old key with `ssh-keygen -R '{name}' -f '{finding.entry.file}'`."
        )
        return HostError(self._target.name, what, cure)

    def _unknown(self, key_type: str, print_: str) -> HostError:
        what = f"its host key is unknown: {key_type} {print_}"
        if self._known.bad:
            first = self._known.bad[0]
            what += f"; unreadable in known_hosts: {amount(len(self._known.bad), 'line')}, first "
            what += f"{first.file}:{first.line} {first.why}"
        cure = f"Compare the fingerprint, then run `{self._target.command}` once and accept, "
        return HostError(self._target.name, what, cure + "or add --accept-new-host-keys.")
