"""SSH login: keys of an agent and in files, with their certificates, then passwords and questions."""

from __future__ import annotations

import base64
import binascii
import copy
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramiko.agent import AgentKey, AgentSSH
from paramiko.ecdsakey import ECDSAKey
from paramiko.ed25519key import Ed25519Key
from paramiko.pkey import PKey
from paramiko.rsakey import RSAKey
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, SSHException

from disttui.runner.errors import HostError, LinkLostError
from disttui.runner.text import clean
from disttui.runner.transport.algorithms import key_type, rsa_bits, take
from disttui.runner.transport.base import (
    MOST_QUESTIONS,
    PASSWORD,
    TOO_MANY,
    TOO_MANY_CURE,
    Gate,
    GateEntry,
    NeedsSshError,
    Passwords,
    Prompts,
    words_of_host,
)
from disttui.runner.transport.guarded import GuardedTransport
from disttui.runner.transport.known_hosts import fingerprint
from disttui.runner.transport.sockets import link_broke
from disttui.runner.transport.ssh_config import SshTarget

_KINDS: dict[str, type[PKey]] = {"ssh-ed25519": Ed25519Key, "ssh-rsa": RSAKey}
_PEM: dict[bytes, type[PKey]] = {b"RSA": RSAKey, b"EC": ECDSAKey}
_PUBLIC = re.compile(rb"(ssh|ecdsa|sk)-[a-z0-9@.-]+")
_FOREIGN = re.compile(rb"-----BEGIN (ENCRYPTED |DSA )?PRIVATE KEY-----")
_MAGIC = b"openssh-key-v1\x00"
# Seconds for one signature: the user may have to confirm the use of a key (ssh-add -c) or touch a hardware key.
_SIGN_LIMIT = 60.0
_TRIES = 3
_SSH = "set `transport: ssh` in the profile or your config"


class UnusableKeyError(Exception):
    """A key file cannot be used; the message says why."""


class ForeignKeyError(UnusableKeyError):
    """A key file cannot be used here, but perhaps by the ssh program."""


@dataclass(frozen=True)
class KeyFile:
    """A private key file, parsed but not decrypted.

    `blob` is the public key if the file has it unencrypted (None for the older PEM formats).
    """

    path: str
    kind: type[PKey]
    encrypted: bool
    blob: bytes | None


def read_key_file(path: str) -> KeyFile | None:
    """Parse a private key file, still encrypted; None if it is missing or a public key. Raises UnusableKeyError."""
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
        raise UnusableKeyError("others can read it: chmod 600")
    if first == b"-----BEGIN OPENSSH PRIVATE KEY-----":
        return _openssh(path, data)
    for word, kind in _PEM.items():
        if first == b"-----BEGIN " + word + b" PRIVATE KEY-----":
            return KeyFile(path, kind, b"ENCRYPTED" in data, None)
    problem = ForeignKeyError if _FOREIGN.fullmatch(first) else UnusableKeyError
    raise problem("unknown format; `ssh-keygen -p -f` rewrites it")


def public_blob(path: str) -> bytes | None:
    """The public key blob in an IdentityFile or its `<path>.pub`, to find the key in an agent; None if not found."""
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
        raise ForeignKeyError(f"a key of type {name} works only through an agent: ssh-add it")
    return KeyFile(path, kind, cipher != b"none", blob)


class KeyRing:
    """Cache of decrypted keys: the passphrase of each file is asked for only once per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, PKey | str] = {}

    def load(self, file: KeyFile, ask: Callable[[str], str | None]) -> PKey:
        """Return the private key; `ask` gets a question for its passphrase if needed. Raises UnusableKeyError."""
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
    raise UnusableKeyError("wrong passphrase")


def _load(file: KeyFile, passphrase: str | None) -> PKey:
    try:
        return file.kind.from_private_key_file(file.path, passphrase)
    except (SSHException, OSError, ValueError, TypeError, IndexError) as error:
        raise UnusableKeyError(f"cannot be loaded: {error}") from None


def certified(key: PKey, paths: Sequence[str], certificates: tuple[str, ...]) -> Iterator[PKey]:
    """Yield `key` with each certificate that matches it, from the CertificateFiles and `<path>-cert.pub`.

    Args:
        key: A key from a file or an agent.
        paths: The key's files.
    """
    for file in dict.fromkeys((*certificates, *(f"{path}-cert.pub" for path in paths))):
        if not Path(file).is_file():
            continue
        with_certificate = copy.copy(key)
        try:
            with_certificate.load_certificate(file)
            # A certificate contains the public key's fields right after its nonce.
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
    """An agent's key that returns an empty signature if the agent refuses to sign.

    paramiko signs in the connection's own thread, where an exception would end the connection. An empty signature is
    refused by the server, and the next key is tried.
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
    """Yield the keys of the agent at socket `path`, usable inside the context; empty if there is no agent."""
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


# Seconds for the user to answer; servers end longer logins (sshd's LoginGraceTime is 120 s).
_ANSWER_LIMIT = 120.0
_LOGIN_LIMIT = 120.0
"""Seconds for all attempts together, without the user's time to answer."""
_PUBLIC_KEY = "publickey"
_INTERACTIVE = "keyboard-interactive"
_PASSWORD = "password"  # noqa: S105 - the method's name


class Credentials:
    """Decrypted keys and passwords that worked, kept in memory for further connections."""

    def __init__(self) -> None:
        self.keys = KeyRing()
        self.passwords = Passwords()


class Login:
    """The login to one host, over a transport whose host key has been verified.

    Args:
        trusted: Whether the host key was known or confirmed by the user: only then is a shared password sent.
        gate: Counts the other hosts that are being connected to.
    """

    def __init__(
        self,
        transport: GuardedTransport,
        target: SshTarget,
        prompts: Prompts,
        secrets: Credentials,
        trusted: bool,
        gate: Gate,
    ) -> None:
        self._transport = transport
        self._target = target
        self._prompts = prompts
        self._secrets = secrets
        self._trusted = trusted
        self._gate = gate
        self._turn = GateEntry()
        """Place at the gate for logins that ask."""
        self._banner = self._shown = b""
        self._questions = 0
        self._given: list[str] = []
        """Passwords sent in this attempt."""
        self._gave_up = False
        self._answered = False
        """Whether the user has entered a password: a second prompt means that the login was refused."""
        self._tried: list[str] = []
        self._foreign = ""
        """Description of a key that only the ssh program can use."""
        self._asked = 0.0
        """Seconds spent waiting for the user, including the turn to ask."""
        self._allowed: set[str] | None = None
        """Methods that the server accepts next; None if not known yet."""

    def run(self) -> None:
        """Log in. Raises HostError with a list of what was tried."""
        self._begun = time.monotonic()
        try:
            if not (done := self._with_keys()) and self._foreign:
                raise NeedsSshError(self._target.name, clean(self._foreign))  # ssh tries keys before it asks
            if done or self._with_questions():
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
            said = self._transport.farewell
            self._tried.append("then the server closed the connection" + (f": {said}" if said else ""))
        raise self._refused()

    def _with_keys(self) -> bool:
        if not self._target.public_key:
            return False
        with agent_keys(self._target.identity_agent) as agent:
            if agent:  # the user may have to confirm
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
        """Yield (label, key) of the keys to try, in ssh's order; those that need a passphrase come last."""
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
        """Why the settings forbid a login with this key; "" if they allow it."""
        certificate = key.public_blob
        kind = certificate.key_type if certificate is not None else key.get_name()
        allowed = self._target.public_key_algorithms
        if kind not in map(key_type, allowed):
            return "PubkeyAcceptedAlgorithms does not allow it"
        bits = rsa_bits(certificate.key_blob if certificate is not None else key.asbytes())
        least = self._target.required_rsa_size
        return f"{bits} bits; RequiredRSASize is {least}" if bits is not None and bits < least else ""

    def _files(self) -> Iterator[KeyFile]:
        for path in dict.fromkeys(self._target.identity_files):
            try:
                file = read_key_file(path)
            except UnusableKeyError as problem:
                self._tried.append(f"{path} (not usable: {problem})")
                if isinstance(problem, ForeignKeyError):
                    self._foreign = self._foreign or self._tried[-1]
                continue
            if file is not None:
                yield file

    def _with_questions(self) -> bool:
        if self._allowed is None and self._try(lambda: self._transport.auth_none(self._target.user)):
            return True
        self._transport.auth_timeout = _ANSWER_LIMIT
        prompts, interactive = self._target.password_prompts, self._target.keyboard_interactive
        while prompts > 0:
            allowed, asked = self._allowed or set(), self._questions
            if _INTERACTIVE in allowed and interactive:
                method, attempt = _INTERACTIVE, self._interactive
            elif _PASSWORD in allowed and self._target.password:
                method, attempt = _PASSWORD, self._password
            else:
                return False
            if self._attempt(attempt):
                return True
            if self._gave_up:
                return False
            self._tried.append(method)
            if method == _INTERACTIVE and self._questions == asked:
                # As in ssh: sshd without PAM offers it, refuses without a question, but accepts a password.
                interactive = False
            else:
                prompts -= 1
        return False

    def _attempt(self, attempt: Callable[[], list[str]]) -> bool:
        passwords, target = self._secrets.passwords, self._target
        self._given = []
        with ExitStack() as stack:
            begun = time.monotonic()
            self._turn = stack.enter_context(passwords.asking.turn())
            self._asked += time.monotonic() - begun
            if passwords.has(target, target.user, trusted=self._trusted):
                stack.close()
            if not self._try(attempt):
                return False
            if len(self._given) == 1:
                others = self._gate.others
                passwords.keep(target, target.user, self._given[0], target.name, others, self._prompts)
        return True

    def _interactive(self) -> list[str]:
        return self._transport.auth_interactive(self._target.user, self._answers)

    def _answers(self, title: str, instructions: str, questions: list[tuple[str, bool]]) -> list[str]:
        """Answer one message of the server, which may contain no questions or several. Raises SSHException."""
        self._questions += max(1, len(questions))
        if self._questions > MOST_QUESTIONS:
            raise SSHException(f"the server asks more than {MOST_QUESTIONS} questions")
        said, answers = [self._new_banner(), title, instructions], []
        for question, echo in questions:
            if not echo and PASSWORD.fullmatch(question.strip()):
                answers.append(self._secret(*said))
            else:
                answers.append(self._reply("your answer:", *said, question))
            said = []
        if not questions and (words := words_of_host(*said)):
            self._prompts.tell(self._target.name, words)
        return answers

    def _password(self) -> list[str]:
        password = self._secret(self._new_banner())
        if self._gave_up:
            return [_PASSWORD]
        return self._transport.auth_password(self._target.user, password, fallback=False)

    def _secret(self, *said: str) -> str:
        """The next password: one that worked before or is shared, each used once, else the user's answer."""
        known = self._secrets.passwords.take(self._target, self._target.user, trusted=self._trusted)
        if known is None:
            again = "login refused, try again: " if self._answered else ""
            known = self._reply(f"{again}password of {self._target.user} on {self._target.hostname}:", *said)
            self._answered = True
        self._given.append(known)
        return known

    def _reply(self, question: str, *said: str) -> str:
        """The user's answer to a question; "" after the user has given up."""
        answer = None if self._gave_up else self._ask(question, *said)
        self._gave_up = answer is None
        return answer or ""

    def _ask(self, question: str, *said: str) -> str | None:
        begun = time.monotonic()
        try:
            with self._turn.asking():
                return self._prompts.secret(self._target.name, question, words_of_host(*said))
        finally:
            self._asked += time.monotonic() - begun

    def _new_banner(self) -> str:
        """The server's banner; "" if it has been shown."""
        banner = self._transport.get_banner() or self._banner
        shown, self._shown = self._shown, banner
        return "" if banner == shown else banner.decode(errors="replace")

    def _try(self, attempt: Callable[[], list[str]]) -> bool:
        """Return whether an attempt logs in; if not, note which methods may follow. Raises EOFError, SSHException."""
        if time.monotonic() - self._begun - self._asked > _LOGIN_LIMIT:
            raise SSHException(f"the server took more than {_LOGIN_LIMIT:.0f} s for the login")
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
        finally:
            self._banner = self._transport.get_banner() or self._banner
        self._allowed = set(more) or self._allowed
        return not more

    def _refused(self) -> HostError:
        tried = clean("; ".join(self._tried) or "nothing: no keys found, and nobody can be asked")
        accepts = f"; the server accepts {clean(', '.join(sorted(self._allowed)))}" if self._allowed else ""
        what = f"login as {self._target.place} refused{accepts}; tried: {tried}"
        cure = f"Try `{self._target.command}`; if that works, {_SSH}."
        return HostError(self._target.name, what, TOO_MANY_CURE if TOO_MANY in self._transport.farewell else cure)
