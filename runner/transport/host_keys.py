"""Whether the key that a host has shown may be trusted."""

from __future__ import annotations

import contextlib

from disttui.runner.errors import HostError
from disttui.runner.transport.algorithms import key_type as type_of
from disttui.runner.transport.algorithms import rsa_bits
from disttui.runner.transport.base import NeedsSshError, Prompts
from disttui.runner.transport.known_hosts import (
    KeyMatch,
    KeyStatus,
    KnownHosts,
    KnownHostsLine,
    append,
    fingerprint,
    hashed,
    lookup_name,
)
from disttui.runner.transport.ssh_config import SshTarget


def require_built_in(target: SshTarget) -> None:
    """Raise NeedsSshError where only the ssh program does all that the user's files say about a host."""
    if target.left_to_ssh:
        raise NeedsSshError(target.name, f"{target.left_to_ssh} of your ssh configuration")
    if _known_hosts(target).has_authority(_name(target)):
        raise NeedsSshError(target.name, "@cert-authority in known_hosts")


def _known_hosts(target: SshTarget) -> KnownHosts:
    return KnownHosts((*target.user_known_hosts, *target.global_known_hosts))


def _name(target: SshTarget) -> str:
    return lookup_name(target.hostname, target.port, target.host_key_alias)


class HostKeyCheck:
    """Judges one host's key by the known_hosts files of its target, never more loosely than ssh does.

    Args:
        accept_new: Add unknown keys without asking (never changed ones).
        address: The IP address that was dialled, for CheckHostIP; None where a jump host dials.
    """

    def __init__(self, target: SshTarget, prompts: Prompts, accept_new: bool, address: str | None = None) -> None:
        self._target = target
        self._prompts = prompts
        self._accept_new = accept_new or target.strict in ("accept-new", "no")
        self._known = _known_hosts(target)
        self._name = _name(target)
        self._address = lookup_name(address, target.port, None) if address and target.check_host_ip else None
        self.confirmed = True
        """Whether the key was known or the user has confirmed it, rather than taken for new."""

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Put the algorithms whose keys are known first: a host with several keys must show the known one."""
        types = self._known.key_types(self._name)
        return tuple(sorted(algorithms, key=lambda name: types.index(kind) if (kind := type_of(name)) in types else 99))

    def verify(self, key_type: str, blob: bytes) -> None:
        """Return where the key is known, or has been accepted just now; else raise HostError."""
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
            # As in ssh, a file that cannot be written costs a question next time, not the connection.
            with contextlib.suppress(OSError):
                append(self._target.user_known_hosts[0], name, key_type, blob)

    def _refuse_short(self, blob: bytes) -> None:
        bits = rsa_bits(blob)
        if bits is not None and bits < self._target.required_rsa_size:
            what = f"its RSA host key has only {bits} bits; RequiredRSASize is {self._target.required_rsa_size}"
            raise HostError(self._target.name, what, "Create a longer host key there with `ssh-keygen -A`.")

    def _bad(self, finding: KeyMatch, key_type: str, blob: bytes) -> HostError:
        assert finding.entry is not None
        where = _where(finding.entry)
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
            f"If the host was set up anew, remove the old key with `ssh-keygen -R '{name}' -f '{finding.entry.file}'`."
        )
        return HostError(self._target.name, what, cure)

    def _unknown(self, key_type: str, print_: str) -> HostError:
        what = f"its host key is unknown: {key_type} {print_}"
        if self._known.bad:
            first = self._known.bad[0]
            what += (
                f"; {len(self._known.bad)} lines of known_hosts cannot be read: {first.file}:{first.line} {first.why}"
            )
        cure = f"Compare the fingerprint, then run `{self._target.command}` once and accept, "
        return HostError(self._target.name, what, cure + "or give --accept-new-host-keys.")


def _where(entry: KnownHostsLine) -> str:
    return f"{entry.file}:{entry.line}"
