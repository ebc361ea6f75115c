"""Questions of a login, by both transports: what the host says is shown, and one password may do for many hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL

from disttui.runner.address import Address
from disttui.runner.errors import HostError
from disttui.runner.text import is_clean
from disttui.runner.transport.base import MOST_QUESTIONS, PASSWORD, words_of_host
from disttui.runner.transport.connector import HostConnector
from disttui.runner.transport.sandbox import LoginSession, LoopbackServer
from tests.unit.sshd import Answers, Place, new_key, public
from tests.unit.waiting import wait_for

OTP = "One-time password (OATH) for `ada': "
QUERIES: dict[str, tuple[str, str, list[tuple[str, bool]]]] = {
    "menu": ("Duo login", "\x1b[2J 1. Push\x1b]0;owned\x07\n 2. Call\u202e", [("password of ada@other:", False)]),
    "otp": ("", "", [(OTP, False)]),
    "shown": ("", "", [("Password:", True)]),
    "many": ("", "", [("more:", False)] * (MOST_QUESTIONS + 1)),
    "endless": ("", "wait", []),
    "push": ("", "Look at your phone", []),
}


class Session(LoginSession):
    """Lets in by one password, or asks as its user name says."""

    _server: Server

    def get_banner(self) -> tuple[str, str]:
        return "\x1b[31mOnly for\r\nmembers\x07\n", "en"

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive" if username in QUERIES else "password"

    def check_auth_password(self, username: str, password: str) -> int:
        self._server.tries.append(password)
        return AUTH_SUCCESSFUL if password == self._server.password else AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> paramiko.server.InteractiveQuery:
        self._user = username
        title, instructions, prompts = QUERIES[username]
        return paramiko.server.InteractiveQuery(title, instructions, *prompts)

    def check_auth_interactive_response(self, responses: list[str]) -> int | paramiko.server.InteractiveQuery:
        self._server.tries.extend(responses)
        if self._user == "endless":
            return self.check_auth_interactive(self._user, "")
        return AUTH_SUCCESSFUL if responses in (["123"], []) else AUTH_FAILED


class Server(LoopbackServer):
    session = Session

    def __init__(self, folder: Path, password: str = "sesame") -> None:
        folder.mkdir()
        self.password = password
        self.tries: list[str] = []
        key = new_key(folder / "host_key")
        self.known = public(key).decode()
        host_key = paramiko.Ed25519Key.from_private_key_file(str(key))
        super().__init__(host_key, host_key, folder, "nobody")

    @property
    def connected(self) -> bool:
        return bool(self._transports)


@pytest.fixture
def server(place: Place) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(name: str, password: str = "sesame") -> Server:
        made.append(Server(place.folder / name, password))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture(params=["builtin", "ssh"])
def connect(request: pytest.FixtureRequest, place: Place) -> Iterator[Callable[..., HostConnector]]:
    """Make a connector to servers by their names; all keys are known but that of `new`, which is taken as `c`'s is."""
    made: list[HostConnector] = []

    def make(prompts: Answers, servers: dict[str, Server], user: str = "ada", new: str = "") -> HostConnector:
        blocks = "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {each.port}\n  User {user}\n  PubkeyAuthentication no\n"
            + ("  StrictHostKeyChecking accept-new\n" if new and name in (new, "c") else "")
            for name, each in servers.items()
        )
        trusted = (f"[127.0.0.1]:{each.port} {each.known}" for name, each in servers.items() if name != new)
        config = place.write(blocks, trusted="".join(trusted))
        made.append(HostConnector(config, prompts, transport=request.param))
        return made[-1]

    yield make
    for each in made:
        each.close()


def reach(connector: HostConnector, name: str) -> None:
    connection = connector.connect(Address(name))
    assert connection.run("echo in").read(10, 20) == b"in\n"
    connection.close()


def test_words_of_the_host_are_shown(connect: Callable[..., HostConnector], server: Callable[..., Server]) -> None:
    """Banner, title, instructions and prompt stand behind bars; the question is never in the host's own words."""
    prompts = Answers("123")
    reach(connect(prompts, {"gpu1": server("gpu1")}, "menu"), "gpu1")
    assert prompts.questions == ["gpu1: your answer:"]
    (said,) = prompts.said
    lines = said.split("\n")
    assert all(line.startswith("│ ") and is_clean(line) for line in lines)
    # ssh itself spells escape codes out.
    words = ("Only for", "members", "Duo login", " 1. Push", " 2. Call", "password of ada@other:")
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_push_without_a_question_is_shown(connect: Callable[..., HostConnector], server: Callable[..., Server]) -> None:
    prompts = Answers()
    reach(connect(prompts, {"gpu1": server("gpu1")}, "push"), "gpu1")
    assert prompts.questions == []
    # ssh's own words are shown once the login waits; this one does not.
    assert all("│ Look at your phone" in said for said in prompts.said)


@pytest.mark.parametrize("user", ["many", "endless"])
def test_host_with_too_many_questions(
    connect: Callable[..., HostConnector], server: Callable[..., Server], user: str
) -> None:
    prompts = Answers(*["x"] * 100)
    with pytest.raises(HostError, match=r"questions|refused|closed|reset"):
        connect(prompts, {"gpu1": server("gpu1")}, user).connect(Address("gpu1")).run("true")
    assert len(prompts.questions) <= MOST_QUESTIONS


# ssh's program does not say whether an answer may be shown.
@pytest.mark.parametrize(
    ("connect", "user"), [("builtin", "otp"), ("ssh", "otp"), ("builtin", "shown")], indirect=["connect"]
)
def test_code_is_asked_for_each_time(
    connect: Callable[..., HostConnector], server: Callable[..., Server], user: str
) -> None:
    """A one-time code is not kept for another connection, nor offered to another host."""
    servers = {"gpu1": server("gpu1"), "gpu2": server("gpu2")}
    prompts = Answers("123", "123", "123", share=True)
    connector = connect(prompts, servers, user)
    for name in ("gpu1", "gpu1", "gpu2"):
        reach(connector, name)
    assert prompts.questions == [f"{name}: your answer:" for name in ("gpu1", "gpu1", "gpu2")]
    assert prompts.shared == []


class ByHost(Answers):
    """Answers with each host's own password; the first question waits until all are being connected to."""

    def __init__(self, passwords: dict[str, str], ready: threading.Event, share: bool) -> None:
        super().__init__(share=share)
        self._passwords = passwords
        self._ready = ready

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        super().secret(host, question, said)
        assert self._ready.wait(60)
        return self._passwords[host]


@pytest.mark.parametrize("share", [True, False])
def test_one_password_for_other_hosts(
    connect: Callable[..., HostConnector], server: Callable[..., Server], share: bool
) -> None:
    """After a yes only the host with another password, and the one with a new key, ask again; each is tried once."""
    passwords = {"a": "sesame", "b": "sesame", "c": "sesame", "other": "else", "new": "sesame"}
    servers = {name: server(name, password) for name, password in passwords.items()}
    ready = threading.Event()
    prompts = ByHost(passwords, ready, share)
    connector = connect(prompts, servers, new="new")
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(reach, connector, "a")
        wait_for(lambda: bool(prompts.questions))
        rest = [pool.submit(reach, connector, name) for name in list(passwords)[1:]]
        wait_for(lambda: all(each.connected for each in servers.values()))
        ready.set()
        for done in (first, *rest):
            done.result(60)
    assert prompts.shared == [("a", 4)]
    asked = [question.partition(":")[0] for question in prompts.questions]
    assert asked[0] == "a"
    assert sorted(asked) == (["a", "new", "other"] if share else sorted(passwords))
    assert servers["other"].tries == (["sesame", "else"] if share else ["else"])
    assert all(servers[name].tries == ["sesame"] for name in ("a", "b", "c", "new"))


def test_prompts_for_codes_are_no_password_prompts() -> None:
    for prompt in ("Password:", "password", "(ada@gpu1) Password:", "ada@gpu1's password:", "Password for ada@REALM:"):
        assert PASSWORD.fullmatch(prompt), prompt
    for prompt in (
        OTP.strip(),
        "Verification code:",
        "Passcode or option (1-3):",
        "New password:",
        "Password + token:",
    ):
        assert not PASSWORD.fullmatch(prompt), prompt


def test_long_words_of_a_host_are_cut() -> None:
    shown = words_of_host("\n".join(f"{number} {'x' * 1000}" for number in range(1000)), "Code:").split("\n")
    assert (len(shown), shown[0], shown[-1]) == (25, "│ …", "│ Code:")
    assert max(map(len, shown)) <= 302
