"""Whether the key that a host has shown may be trusted."""

from __future__ import annotations

import contextlib

from runner.errors import HostError
from runner.transport.base import Prompts
from runner.transport.known_hosts import Finding, KnownHosts, Verdict, append, fingerprint, lookup_name
from runner.transport.ssh_config import Target

_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class HostKeyCheck:
    """Judges one host's key by the known_hosts files of its target.

    Args:
        accept_new: Add unknown keys without asking (never changed ones).
    """

    def __init__(self, target: Target, prompts: Prompts, accept_new: bool) -> None:
        self._target = target
        self._prompts = prompts
        self._accept_new = accept_new or target.strict in ("accept-new", "no")
        self._known = KnownHosts((*target.user_known_hosts, *target.global_known_hosts))
        self._name = lookup_name(target.hostname, target.port, target.host_key_alias)

    def order(self, algorithms: tuple[str, ...]) -> list[str]:
        """Put the algorithms whose keys are known first: a host with several keys must show the known one."""
        types = self._known.key_types(self._name)
        first = [name for kind in types for name in (_RSA if kind == "ssh-rsa" else (kind,)) if name in algorithms]
        return [*first, *(name for name in algorithms if name not in first)]

    def verify(self, key_type: str, blob: bytes) -> None:
        """Return if the key is known or has been accepted just now. Raises HostError."""
        finding = self._known.check(self._name, key_type, blob)
        if finding.verdict is Verdict.KNOWN:
            return
        if finding.verdict is not Verdict.UNKNOWN:
            raise self._bad(finding, key_type, blob)
        print_ = fingerprint(blob)
        if not self._accept_new:
            may_ask = self._target.strict != "yes"
            if not (may_ask and self._prompts.accept_host_key(self._target.name, key_type, print_)):
                raise self._unknown(finding, key_type, print_)
        if self._target.user_known_hosts:
            # As in ssh, a file that cannot be written costs a question next time, not the connection.
            with contextlib.suppress(OSError):
                append(self._target.user_known_hosts[0], self._name, key_type, blob)

    def _bad(self, finding: Finding, key_type: str, blob: bytes) -> HostError:
        assert finding.entry is not None
        where = f"{finding.entry.file}:{finding.entry.line}"
        shown = f"{key_type} {fingerprint(blob)}"
        if finding.verdict is Verdict.REVOKED:
            what = f"its host key ({shown}) is revoked by {where}"
            return HostError(self._target.name, what, "Do not connect; ask whoever runs the host.")
        what = (
            f"its host key has changed: {shown} does not match {where} "
            f"({finding.entry.key_type} {fingerprint(finding.entry.blob)}); somebody may be listening in"
        )
        cure = (
            "If the host was set up anew, remove the old key with "
            f"`ssh-keygen -R '{self._name}' -f '{finding.entry.file}'`."
        )
        return HostError(self._target.name, what, cure)

    def _unknown(self, finding: Finding, key_type: str, print_: str) -> HostError:
        what = f"its host key is unknown: {key_type} {print_}"
        if finding.entry is not None:
            what += f" (the certificate authority at {finding.entry.file}:{finding.entry.line} cannot be used here)"
        if self._known.bad:
            first = self._known.bad[0]
            what += (
                f"; {len(self._known.bad)} lines of known_hosts make no sense: {first.file}:{first.line} {first.why}"
            )
        cure = f"Compare the fingerprint, then run `ssh {self._target.name}` once and accept, "
        return HostError(self._target.name, what, cure + "or give --accept-new-host-keys.")
