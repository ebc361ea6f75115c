"""Logging in: agent, key files, then questions."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

from paramiko.agent import AgentKey
from paramiko.pkey import PKey
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, SSHException

from runner.errors import HostError, LinkLostError
from runner.text import clean
from runner.transport.algorithms import key_type
from runner.transport.base import Prompts
from runner.transport.certificates import rsa_bits
from runner.transport.guarded import GuardedTransport
from runner.transport.keys import KeyFile, KeyRing, UnusableKeyError, agent_keys, certified, public_blob, read_key_file
from runner.transport.known_hosts import fingerprint
from runner.transport.sockets import link_broke
from runner.transport.ssh_config import SshTarget

# A person has to read and answer; servers end a login that takes longer than this (LoginGraceTime).
_ANSWER_LIMIT = 120.0
_LOGIN_LIMIT = 120.0
"""Seconds for all attempts together, without the time that a person takes to answer."""
_PUBLIC_KEY = "publickey"
_INTERACTIVE = "keyboard-interactive"
_PASSWORD = "password"  # noqa: S105 - the method's name


class Credentials:
    """What has been asked for: decrypted keys and passwords that worked, in memory, for connecting again."""

    def __init__(self) -> None:
        self.keys = KeyRing()
        self.passwords: dict[SshTarget, str] = {}


class Login:
    """One host's login over a transport whose host key has been verified."""

    def __init__(self, transport: GuardedTransport, target: SshTarget, prompts: Prompts, secrets: Credentials) -> None:
        self._transport = transport
        self._target = target
        self._prompts = prompts
        self._secrets = secrets
        self._tried: list[str] = []
        self._asked = 0.0
        """Seconds that the person has taken to answer."""
        self._allowed: set[str] | None = None
        """Methods that the server accepts next, None: not known yet."""

    def run(self) -> None:
        """Log in. Raises HostError that names what was tried."""
        self._begun = time.monotonic()
        try:
            if self._with_keys() or self._with_questions():
                self._transport.packetizer.trust()
                return
        except EOFError:
            problem = self._transport.saved_exception
            if isinstance(problem, SSHException):
                self._tried.append(str(problem))
        except HostError:
            raise
        except Exception as error:
            if link_broke(error) and not self._transport.is_active():
                what = f"the link broke during the login as {self._target.place}: {clean(str(error))[:300]}"
                raise LinkLostError(self._target.name, what, "Try again.") from None
            self._tried.append(str(error)[:300] or type(error).__name__)
        if not self._transport.is_active():
            self._tried.append("then the server hung up")
        raise self._refused()

    def _with_keys(self) -> bool:
        if not self._target.public_key:
            return False
        with agent_keys(self._target.identity_agent) as agent:
            if agent:  # a person may have to confirm
                self._transport.auth_timeout = _ANSWER_LIMIT
            for label, key in self._keys(agent):
                if problem := self._unfit(key):
                    self._tried.append(f"{label} (not tried: {problem})")
                    continue
                self._tried.append(label)
                if self._try(lambda key=key: self._transport.auth_publickey(self._target.user, key)):  # type: ignore[misc]
                    return True
                if self._allowed is not None and _PUBLIC_KEY not in self._allowed:
                    return False
        return False

    def _keys(self, agent: tuple[AgentKey, ...]) -> Iterator[tuple[str, PKey]]:
        """The keys to try, in ssh's order; what needs a passphrase comes last, since it costs a question."""
        files = list(self._files())
        in_clear = {file.path: file.blob for file in files}
        named = [in_clear.get(path) or public_blob(path) for path in self._target.identity_files]
        mine = sorted((key for key in agent if key.blob in named), key=lambda key: named.index(key.blob))
        others = [] if self._target.identities_only else [key for key in agent if key.blob not in named]
        for held_key in (*mine, *others):
            label = f"agent key {held_key.comment} {fingerprint(held_key.blob)}"
            places = [
                path for path, blob in zip(self._target.identity_files, named, strict=True) if blob == held_key.blob
            ]
            for with_certificate in certified(held_key, places, self._target.certificate_files):
                yield f"{label} with certificate", with_certificate
            yield label, held_key
        held = {key.blob for key in agent}
        for file in sorted(files, key=lambda file: file.encrypted):
            if file.blob in held:
                continue
            try:
                key = self._secrets.keys.load(file, self._ask)
            except UnusableKeyError as problem:
                self._tried.append(f"{file.path} (not usable: {problem})")
                continue
            for with_certificate in certified(key, [file.path], self._target.certificate_files):
                yield f"{file.path} with certificate", with_certificate
            yield file.path, key

    def _unfit(self, key: PKey) -> str:
        """Why the settings forbid to log in with a key, "" where they allow it."""
        certificate = key.public_blob
        kind = certificate.key_type if certificate is not None else key.get_name()
        allowed = self._target.public_key_algorithms
        if kind not in map(key_type, allowed):
            return "PubkeyAcceptedAlgorithms does not allow it"
        try:
            bits = rsa_bits(certificate.key_blob if certificate is not None else key.asbytes())
        except (ValueError, struct.error):
            bits = 0
        least = self._target.required_rsa_size
        return f"{bits} bits; RequiredRSASize is {least}" if bits is not None and bits < least else ""

    def _files(self) -> Iterator[KeyFile]:
        for path in dict.fromkeys(self._target.identity_files):
            try:
                file = read_key_file(path)
            except UnusableKeyError as problem:
                self._tried.append(f"{path} (not usable: {problem})")
                continue
            if file is not None:
                yield file

    def _with_questions(self) -> bool:
        if self._allowed is None and self._try(lambda: self._transport.auth_none(self._target.user)):
            return True
        self._transport.auth_timeout = _ANSWER_LIMIT
        for _ in range(self._target.password_prompts):
            allowed = self._allowed or set()
            if _INTERACTIVE in allowed and self._target.keyboard_interactive:
                method, attempt = _INTERACTIVE, self._interactive
            elif _PASSWORD in allowed and self._target.password:
                method, attempt = _PASSWORD, self._password
            else:
                return False
            answers: list[str | None] = []
            if self._try(lambda: attempt(answers)):  # noqa: B023 - called at once
                if len(answers) == 1 and answers[0]:
                    self._secrets.passwords[self._target] = answers[0]
                return True
            if None in answers:
                return False
            self._tried.append(method)
        return False

    def _interactive(self, answers: list[str | None]) -> list[str]:
        def answer(title: str, instructions: str, questions: list[tuple[str, bool]]) -> list[str]:
            given = [self._secret(question) for question, _ in questions]
            answers.extend(given)
            return [text or "" for text in given]

        return self._transport.auth_interactive(self._target.user, answer)

    def _password(self, answers: list[str | None]) -> list[str]:
        answers.append(self._secret("password:"))
        if answers[0] is None:
            return [_PASSWORD]
        return self._transport.auth_password(self._target.user, answers[0], fallback=False)

    def _secret(self, question: str) -> str | None:
        """What worked for this host before, used once; after that, what the person answers."""
        return self._secrets.passwords.pop(self._target, None) or self._ask(question)

    def _ask(self, question: str) -> str | None:
        begun = time.monotonic()
        try:
            return self._prompts.secret(self._target.name, question)
        finally:
            self._asked += time.monotonic() - begun

    def _try(self, attempt: Callable[[], list[str]]) -> bool:
        """Return whether the server lets us in; else remember what it accepts next. Raises EOFError, SSHException."""
        if time.monotonic() - self._begun - self._asked > _LOGIN_LIMIT:
            raise SSHException(f"the server has taken more than {_LOGIN_LIMIT:.0f} s over it")
        try:
            more = attempt()
        except BadAuthenticationType as error:
            self._allowed = set(error.allowed_types)
            return False
        except AuthenticationException as error:
            if not self._transport.is_active():
                raise EOFError from None
            if "timeout" in str(error):
                raise SSHException(f"no answer in {self._transport.auth_timeout:.0f} s") from None
            return False
        self._allowed = set(more) or self._allowed
        return not more

    def _refused(self) -> HostError:
        tried = clean("; ".join(self._tried) or "nothing: there is no key and nobody to ask")
        accepts = f"; the server accepts {clean(', '.join(sorted(self._allowed)))}" if self._allowed else ""
        what = f"login as {self._target.place} refused{accepts}; tried: {tried}"
        return HostError(self._target.name, what, f"Try `ssh {self._target.name}`; where that works, so does this.")
