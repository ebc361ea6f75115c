"""Whether the key that a host has shown may be trusted."""

from __future__ import annotations

import base64
import contextlib
import shlex
import struct
import subprocess

from runner.errors import HostError
from runner.text import clean
from runner.transport.algorithms import CERTIFICATE
from runner.transport.algorithms import key_type as type_of
from runner.transport.base import Prompts
from runner.transport.certificates import Certificate, UnusableCertificateError, read_certificate, rsa_bits
from runner.transport.known_hosts import (
    KeyMatch,
    KeyStatus,
    KnownHosts,
    KnownHostsLine,
    append,
    fingerprint,
    hashed,
    lookup_name,
)
from runner.transport.revoked import UnreadableError, is_revoked
from runner.transport.ssh_config import SshTarget
from runner.transport.ssh_tokens import expand

_COMMAND_LIMIT = 20.0
_COMMAND_BYTES = 4 << 20
_COMMAND = "KnownHostsCommand"


class HostKeyCheck:
    """Judges one host's key by the known_hosts files of its target, never more loosely than ssh does.

    Args:
        accept_new: Add unknown keys without asking (never changed ones).
        address: The IP address that was dialled, for CheckHostIP; None where a jump host or a command dials.

    Raises:
        HostError: KnownHostsCommand failed.
    """

    def __init__(self, target: SshTarget, prompts: Prompts, accept_new: bool, address: str | None = None) -> None:
        self._target = target
        self._prompts = prompts
        self._accept_new = accept_new or target.strict in ("accept-new", "no")
        self._known = KnownHosts((*target.user_known_hosts, *target.global_known_hosts))
        self._name = lookup_name(target.hostname, target.port, target.host_key_alias)
        self._address = lookup_name(address, target.port, None) if address and target.check_host_ip else None
        self._doubt = ""
        self._ask_command("ORDER", self._name)

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Put the algorithms whose keys are known first: a host with several keys must show the known one.

        Certificates come first where an authority may vouch for the host, else last.
        """
        vouched = bool(self._known.authorities(self._name))
        types = self._known.key_types(self._name)
        ranks = {name: types.index(type_of(name)) for name in algorithms if type_of(name) in types}

        def rank(name: str) -> int:
            if name.endswith(CERTIFICATE):
                return -1 if vouched else len(algorithms) + 1
            return ranks.get(name, len(algorithms))

        return tuple(sorted(algorithms, key=rank))

    def verify(self, key_type: str, blob: bytes, shown: bytes) -> None:
        """Return where the key is known, or has been accepted just now; else raise HostError.

        Args:
            key_type: The type of the plain key.
            blob: The plain key.
            shown: What the host has shown: the key, or a certificate of it.
        """
        certificate = self._certificate(shown)
        self._refuse_short(blob)
        self._refuse_revoked(key_type, blob, shown, certificate)
        for purpose, name in (("HOSTNAME", self._name), ("ADDRESS", self._address)):
            if name is not None:
                self._ask_command(purpose, name, key_type, blob)
        finding = self._known.check(self._name, key_type, blob, certificate.authority if certificate else None)
        if finding.verdict is KeyStatus.REVOKED:
            raise self._bad(finding, key_type, blob)
        if self._address is not None:
            by_address = self._known.check(self._address, key_type, blob)
            if by_address.verdict in (KeyStatus.REVOKED, KeyStatus.CHANGED):
                raise self._bad(by_address, key_type, blob)
        if certificate is not None and self._vouched(certificate):
            return
        if finding.verdict is KeyStatus.KNOWN:
            return
        if finding.verdict is not KeyStatus.UNKNOWN:
            raise self._bad(finding, key_type, blob)
        print_ = fingerprint(blob)
        if not self._accept_new:
            may_ask = self._target.strict != "yes"
            if not (may_ask and self._prompts.accept_host_key(self._target.name, key_type, print_)):
                raise self._unknown(finding, key_type, print_)
        if self._target.user_known_hosts:
            name = hashed(self._name) if self._target.hash_known_hosts else self._name
            # As in ssh, a file that cannot be written costs a question next time, not the connection.
            with contextlib.suppress(OSError):
                append(self._target.user_known_hosts[0], name, key_type, blob)

    def _certificate(self, shown: bytes) -> Certificate | None:
        try:
            return read_certificate(shown)
        except UnusableCertificateError as problem:
            self._doubt = str(problem)
            return None

    def _vouched(self, certificate: Certificate) -> bool:
        """Whether a known authority speaks for the host; if not, its plain key may still be known, as in ssh."""
        target = self._target
        authority = next((e for e in self._known.authorities(self._name) if e.blob == certificate.authority), None)
        if authority is None:
            self._doubt = f"no known authority has signed it ({fingerprint(certificate.authority)} has)"
            return False
        name = target.host_key_alias or target.hostname.lower()
        try:
            certificate.verify(name, target.authority_algorithms, target.required_rsa_size)
        except UnusableCertificateError as problem:
            self._doubt = str(problem)
            return False
        return True

    def _refuse_short(self, blob: bytes) -> None:
        try:
            bits = rsa_bits(blob)
        except (ValueError, struct.error):
            bits = 0
        if bits is not None and bits < self._target.required_rsa_size:
            what = f"its RSA host key has only {bits} bits; RequiredRSASize is {self._target.required_rsa_size}"
            raise HostError(self._target.name, what, "Have a longer host key made there, with `ssh-keygen -A`.")

    def _refuse_revoked(self, key_type: str, blob: bytes, shown: bytes, certificate: Certificate | None) -> None:
        keys = dict.fromkeys((blob, shown, *((certificate.authority,) if certificate else ())))
        for file in self._target.revoked_host_keys:
            try:
                revoked = is_revoked(file, keys)
            except UnreadableError as problem:
                what = f"no host key is trusted, since RevokedHostKeys {file} cannot be used: {clean(str(problem))}"
                raise HostError(self._target.name, what, "Correct the file, or the ssh configuration.") from None
            if revoked:
                what = f"its host key ({key_type} {fingerprint(blob)}) is revoked by RevokedHostKeys {file}"
                raise HostError(self._target.name, what, "Do not connect; ask the host's administrator.")

    def _ask_command(self, purpose: str, name: str, key_type: str = "NONE", blob: bytes | None = None) -> None:
        """Add the lines that KnownHostsCommand prints: once for the order of the algorithms, once for the key."""
        template = self._target.known_hosts_command
        if template is None:
            return
        text, print_ = ("NONE", "NONE") if blob is None else (base64.b64encode(blob).decode(), fingerprint(blob))
        tokens = {**self._target.tokens, "H": name, "I": purpose, "t": key_type, "K": text, "f": print_}
        try:
            argv = [expand(word, tokens) for word in shlex.split(template)]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_LIMIT, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise self._command_failed(str(error)) from None
        if done.returncode:
            said = clean(done.stderr.decode(errors="replace").strip())[-300:]
            raise self._command_failed(f"exit code {done.returncode}" + (f": {said}" if said else ""))
        self._known.add(_COMMAND, done.stdout[:_COMMAND_BYTES])

    def _command_failed(self, why: str) -> HostError:
        cure = "Run the command by hand, or correct the ssh configuration."
        return HostError(self._target.name, f"{_COMMAND} failed: {clean(why)}", cure)

    def _bad(self, finding: KeyMatch, key_type: str, blob: bytes) -> HostError:
        assert finding.entry is not None
        where = _where(finding.entry)
        shown = f"{key_type} {fingerprint(blob)}"
        if finding.verdict is KeyStatus.REVOKED:
            what = f"its host key ({shown}) is revoked by {where}"
            return HostError(self._target.name, what, "Do not connect; ask the host's administrator.")
        what = (
            f"its host key has changed: {shown} does not match {where} "
            f"({finding.entry.key_type} {fingerprint(finding.entry.blob)}); somebody may be listening in"
        )
        name = self._address if self._address and finding.entry.names(self._address) else self._name
        cure = (
            f"If the host was set up anew, remove the old key with `ssh-keygen -R '{name}' -f '{finding.entry.file}'`."
        )
        return HostError(self._target.name, what, cure)

    def _unknown(self, finding: KeyMatch, key_type: str, print_: str) -> HostError:
        what = f"its host key is unknown: {key_type} {print_}"
        if self._doubt:
            what += f" (its certificate does not count: {clean(self._doubt)})"
        elif finding.entry is not None:
            what += f" (it shows no certificate of the authority at {_where(finding.entry)})"
        if self._known.bad:
            first = self._known.bad[0]
            what += (
                f"; {len(self._known.bad)} lines of known_hosts cannot be read: {first.file}:{first.line} {first.why}"
            )
        cure = f"Compare the fingerprint, then run `ssh {self._target.name}` once and accept, "
        return HostError(self._target.name, what, cure + "or give --accept-new-host-keys.")


def _where(entry: KnownHostsLine) -> str:
    return f"{entry.file}:{entry.line}"
