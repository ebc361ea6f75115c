"""The link to a host's node program, through a real shell on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import HostError
from disttui.runner.hosts import ship
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.ship import COMMAND, node_parcel, train_parcel
from disttui.runner.protocol.frames import pack_json
from disttui.runner.protocol.limits import CHUNK
from disttui.runner.transport.local import LocalConnection
from tests.command import ran
from tests.files import new_file, new_folder
from tests.kept import has_been_reached
from tests.unit.waiting import wait_for

SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "fish", "tcsh") if Path(f"/bin/{shell}").exists()]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = new_folder(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return home


@pytest.fixture
def link(home: Path) -> Iterator[Link]:
    """To a host that was reached before."""
    has_been_reached(home)
    opened = Link(LocalConnection("local"), "local", sys.executable)
    yield opened
    opened.close()


@pytest.fixture
def first_link(home: Path) -> Iterator[Link]:
    opened = Link(LocalConnection("local"), "local", sys.executable)
    opened.request("list", run_dir="~/x")  # the first answer comes when the node program is in place
    yield opened
    opened.close()


class Shelled:
    """A connection whose login shell is `shell`, which prints `noise` first."""

    name = "shelled"

    def __init__(self, shell: str, noise: str = "") -> None:
        self._inner = LocalConnection("local")
        self._shell = shell
        self._noise = noise

    def run(self, command: str) -> Any:
        return self._inner.run(f"{self._noise}\nSHELL=/bin/{self._shell} {self._shell} -c {shlex.quote(command)}")

    def close(self) -> None:
        self._inner.close()


def test_the_node_program_is_sent_once_and_kept_private(home: Path, first_link: Link) -> None:
    cache = home / ".cache" / "disttui"
    kept = {path.name for path in cache.iterdir()}
    assert kept == {Path(node_parcel().remote_path).name, Path(train_parcel().remote_path).name}
    assert cache.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in cache.iterdir())
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    Link(LocalConnection("local"), "again", sys.executable).close()
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


def test_parcels_are_the_same_every_time() -> None:
    assert node_parcel().data == ship._node_parcel.__wrapped__().data
    assert len(node_parcel().packed) < 1 << 18 + 1


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_reads_the_command_alike(home: Path, shell: str) -> None:
    with closing(Link(Shelled(shell, "echo Welcome; echo 'have a nice day'"), shell)) as link:
        assert link.request("probe")["python"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("given", ["~/ä (b);c/python", "{home}/ä (b);c/python"])
def test_interpreter_in_a_folder_with_any_name(home: Path, shell: str, given: str) -> None:
    folder = new_folder(home / "ä (b);c")
    (folder / "python").symlink_to(sys.executable)
    with closing(Link(Shelled(shell, ""), shell, given.format(home=home))) as link:
        assert link.request("probe")["python"]


def test_the_command_has_nothing_that_a_shell_could_misread() -> None:
    assert not set(COMMAND) & set("!\\$`\n'")


def test_a_module_of_the_user_in_the_home_shadows_nothing(home: Path) -> None:
    (home / "json.py").write_text("raise RuntimeError('shadowed')")
    link = Link(LocalConnection("local"), "local", sys.executable)
    assert link.request("probe")["hostname"]
    link.close()


def test_variables_for_another_python_change_nothing(home: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    link = Link(Shelled("sh", f"export PYTHONHOME={tmp_path} PYTHONPATH={tmp_path}"), "node7", sys.executable)
    assert link.request("probe")["hostname"]
    link.close()


@pytest.mark.parametrize(
    ("shelled", "python", "words"),
    [
        (Shelled("sh"), "/nowhere/python3", "/nowhere/python3 does not exist on this host"),
        (Shelled("sh", "yes 'motd motd motd' | head -c 100000"), "python3", "the login scripts print too much"),
        (Shelled("sh", "echo broken >&2; exit 3"), "python3", "broken"),
        (Shelled("sh"), "true", "the node program ended immediately"),
    ],
)
def test_reason_for_a_failed_start_is_reported(home: Path, shelled: Shelled, python: str, words: str) -> None:
    with pytest.raises(HostError, match=words) as caught:
        Link(shelled, "node7", python)
    assert str(caught.value).startswith("node7: ")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ("{env}/bin/pyhton", "Did you mean {env}/bin/python? Correct `python` in the profile."),
        ("~/.vnev/bin/pyhton", "Did you mean {env}/bin/python? Correct `python` in the profile."),
        ("{env}/bin/gone", "{env}/bin/gone is a broken link: create the environment again."),
        ("~/x y/python", "Correct `python` in the profile, or remove it. The nearest folder there is {home}."),
    ],
)
def test_cure_of_a_misspelt_interpreter(home: Path, shell: str, given: str, cure: str) -> None:
    folder = new_folder(home / ".venv" / "bin")
    (folder / "python").symlink_to(sys.executable)
    (folder / "gone").symlink_to(home / "moved")
    python = given.format(env=folder.parent)
    with pytest.raises(HostError) as caught:
        Link(Shelled(shell), "node7", python)
    assert caught.value.what == f"{python} does not exist on this host"
    assert caught.value.cure == cure.format(env=folder.parent, home=home)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("exec bash", "replaces the login shell by another shell"),
        ("read x", "reads the standard input of commands"),
        ("cat", "reads the standard input of commands"),
        ("cat > /dev/null", "ends the login shell .*, or waits: no command answers"),
        ("exit", "ends the login shell .*: no command answers"),
        ("exec > /dev/null", "redirects its output"),
    ],
)
def test_a_login_script_in_the_way_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, noise: str, words: str
) -> None:
    monkeypatch.setattr("disttui.runner.hosts.link.BEGIN", 2.0)
    monkeypatch.setattr("disttui.runner.hosts.link._PATIENCE", 2.0)
    monkeypatch.setenv("SHELL", "/bin/bash")
    with pytest.raises(HostError, match=words) as caught:
        Link(Shelled("sh", noise), "node7")
    assert "~/.bashrc" in caught.value.what and "exec(" not in str(caught.value)
    assert "[[ $- == *i* ]] || return" in caught.value.cure


def test_a_python_that_cannot_load_is_not_called_missing(home: Path, tmp_path: Path) -> None:
    """As where `ulimit -v` in a login script is too low."""
    said = "python3: error while loading shared libraries: libc.so.6: failed to map segment"
    new_file(tmp_path / "python3", f"#!/bin/sh\necho '{said}' >&2\nexit 127\n", 0o755)
    with pytest.raises(
        HostError, match="could not be started with python3: the node program ended immediately"
    ) as caught:
        Link(Shelled("sh", f"PATH={tmp_path}:$PATH"), "node7")
    assert said in str(caught.value)


NO_SHELL = r"this user has no login shell there\n"
EXPIRED = "WARNING: Your password has expired.\\nPassword change required but no TTY available."


@pytest.mark.parametrize(
    ("login", "match", "cure"),
    [
        (("sh", "exec /usr/sbin/nologin"), NO_SHELL + ".*currently not available", "Log in as another user"),
        (("sh", "echo \"fatal: unrecognized command 'x'\" >&2; exit 128"), NO_SHELL, ""),
        (("sh", "echo 'This service allows sftp connections only.'; exit 1"), NO_SHELL, ""),
        (("sh", "echo 'Hi! You are authenticated, but shell access is not provided.' >&2; exit 1"), NO_SHELL, ""),
        (("rbash",), NO_SHELL + ".*restricted", ""),
        (("sh", f"printf '{EXPIRED}' >&2; exit 1"), r"password or account has expired there\n", "set a new password"),
    ],
)
def test_an_account_that_runs_no_commands_is_named(home: Path, login: tuple[str, ...], match: str, cure: str) -> None:
    with pytest.raises(HostError, match=match) as caught:
        Link(Shelled(*login), "node7")
    assert cure in caught.value.cure and not re.search("python|bashrc", str(caught.value))


def test_a_silent_shell_that_runs_nothing_is_considered(home: Path) -> None:
    with pytest.raises(HostError, match=r"or the account \(/bin/false\) or sshd"):
        Link(Shelled("sh", "exec false"), "node7")


@pytest.mark.parametrize(("shell", "cure"), [("fish", "`if status is-interactive`"), ("tcsh", "`if ($?prompt) then`")])
def test_the_cure_of_a_login_script_is_of_its_shell(
    home: Path, monkeypatch: pytest.MonkeyPatch, shell: str, cure: str
) -> None:
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    with pytest.raises(HostError) as caught:
        Link(Shelled("sh", "exec bash"), "node7")
    assert cure in caught.value.cure and shell in caught.value.what


def test_a_python_that_hangs_is_ended_and_its_cure_reported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = new_file(tmp_path / "python3", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600\n", 0o755)
    monkeypatch.setattr("disttui.runner.hosts.link.BEGIN", 1.0)
    with pytest.raises(HostError, match="did not start in 1 s") as caught:
        Link(LocalConnection("local"), "node7", str(python))
    assert f"`{python} -c pass` hangs" in caught.value.cure
    pid = int((tmp_path / "pid").read_text())

    def gone() -> bool:
        try:
            os.killpg(os.getpgid(pid), 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(gone, "the end of what hangs")


def test_a_python_that_ends_at_once_has_a_cure(home: Path) -> None:
    with pytest.raises(HostError) as caught:
        Link(Shelled("sh"), "node7", "true")
    assert "`true -V`" in caught.value.cure


def _waiting(first: bytes) -> int:
    """How a loader ends that hears `first` and then nothing more, on a link that stays."""
    short = ship.remote_command(sys.executable).replace("alarm(60)", "alarm(1)")
    with subprocess.Popen(short, shell=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as loader:
        assert loader.stdin
        loader.stdin.write(first)
        loader.stdin.flush()
        return loader.wait(60)


def test_a_loader_whose_viewer_falls_silent_ends_by_itself(home: Path) -> None:
    hello = json.dumps({"marker": "m" * 32, "node": node_parcel().sha256, "train": None}).encode() + b"\n"
    impatient = ship.loader_line().replace(b"signal.alarm(600)", b"signal.alarm(1)")
    assert impatient != ship.loader_line()
    for first in (b"", ship.loader_line(), impatient + hello, impatient + hello + b"%d\n" % len(node_parcel().data)):
        assert _waiting(first) == -signal.SIGALRM


def test_a_loaded_program_is_not_timed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only what comes after the parcels is looked at: they are there already.
    Link(LocalConnection("local"), "local", sys.executable).close()
    impatient = ship.loader_line().replace(b"signal.alarm(600)", b"signal.alarm(2)")
    monkeypatch.setattr("disttui.runner.hosts.link.loader_line", lambda: impatient)
    with closing(Link(LocalConnection("local"), "local", sys.executable)) as link:
        samples: list[Any] = []
        link.stream("telemetry", samples.append, interval=1.0)
        wait_for(lambda: len(samples) > 3, "three seconds")
        assert link.request("probe")["python"]


def test_a_damaged_parcel_is_not_kept(home: Path) -> None:
    child = subprocess.run(
        ["sh", "-c", ship.remote_command(sys.executable)],
        input=ship.loader_line() + b'{"marker": "m", "node": "' + b"0" * 64 + b'", "train": null}\n5\nhello',
        capture_output=True,
        env={**os.environ, "HOME": str(home)},
        timeout=60,
        check=False,
    )
    assert b"arrived damaged" in child.stderr
    assert not list((home / ".cache" / "disttui").glob("*.zip"))


def test_a_host_without_room_for_the_node_program_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is left of the quota of a home is enough for the probe of its folder.
    small = ship.loader_line().replace(
        b"signal.alarm(600)", b"import resource;signal.signal(25, 1);resource.setrlimit(1, (5000, 5000))"
    )
    assert small != ship.loader_line()
    monkeypatch.setattr("disttui.runner.hosts.link.loader_line", lambda: small)
    with pytest.raises(HostError, match=r"the node program cannot be stored: .*node-.*: File too large; free space"):
        Link(LocalConnection("local"), "local", sys.executable).request("probe")


def test_an_unknown_request_and_a_failed_one_are_answered(link: Link) -> None:
    with pytest.raises(HostError, match="does not know 'dance'"):
        link.request("dance")  # type: ignore[call-overload]
    with pytest.raises(HostError):
        link.request("stop", run="nope-1234", node_rank=0, run_dir="~/.disttui/runs", now=False)


def test_requests_run_side_by_side(link: Link) -> None:
    futures = [link.submit("probe") for _ in range(5)]
    assert all(future.result(60)["hostname"] for future in futures)


def test_telemetry_streams_until_the_link_ends(link: Link) -> None:
    came = threading.Event()
    samples: list[Any] = []

    def take(event: Any) -> None:
        samples.append(event)
        if len(samples) == 2:
            came.set()

    link.stream("telemetry", take, interval=0.2)
    assert came.wait(30)
    assert samples[0]["mem_total"] > 0


@pytest.mark.parametrize("error", [OSError, ValueError, KeyError, TypeError, OverflowError])
def test_error_while_handling_news_ends_the_link(link: Link, error: type[Exception]) -> None:
    def refuse(item: object) -> None:
        raise error("no such thing")

    with pytest.raises(HostError, match=r"the link broke: .*no such thing"):
        link.stream("telemetry", refuse, interval=0.1).result(30)


def test_heartbeats_keep_a_silent_link_heard(link: Link) -> None:
    for _ in range(3):
        before = link.heard
        wait_for(lambda: link.heard > before, "a beat")  # noqa: B023 (called here)


class SlowStart:
    """A host whose login has taken long, and whose node program sends nothing in the first reads."""

    name = "slow"

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self._answer = b""
        self.frames = [pack_json({"id": 1, "ok": ["started"]})]

    def run(self, command: str) -> Any:
        return self

    def write(self, data: bytes) -> None:
        if not self._answer and b'{"marker"' in data:
            hello = json.loads(data.strip().rpartition(b"\n")[2])
            self._answer = hello["marker"].encode() + b'{"python": "3.11"}\n'

    def read(self, size: int, timeout: float | None = None) -> bytes:
        if self._answer:
            answer, self._answer = self._answer, b""
            return answer
        self.silent -= 1
        if self.silent >= 0 or not self.frames:
            raise TimeoutError
        return self.frames.pop()

    def errors(self) -> str:
        return ""

    def exit_status(self) -> int | None:
        return None

    def kill(self, word: str) -> None: ...

    def close(self) -> None: ...


def test_slow_login_and_start_are_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit for a link that was heard counts from its first frame."""
    monkeypatch.setattr("disttui.runner.hosts.link.REOPEN_AFTER", -1.0)
    link = Link(SlowStart(3), "slow", "python3")
    link._reader.join(30)
    assert not link._stream.frames  # type: ignore[attr-defined] # its first frame was read
    assert link.closed


def test_a_frozen_host_is_given_up_while_it_is_sent_to(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    link.request("list", run_dir="~/x")
    stopped = link._stream._process.pid  # type: ignore[attr-defined]
    os.killpg(stopped, signal.SIGSTOP)
    monkeypatch.setattr("disttui.runner.hosts.link.REOPEN_AFTER", 2.0)
    said: list[str] = []

    def send() -> None:
        asked = link.upload("put", (bytes(CHUNK) for _ in range(1000)), run="a-1", run_dir="~/x")
        said.append(str(asked.exception(60)))

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    try:
        sending.join(60)
        assert [text[:23] for text in said] == ["local: the link broke: "]
    finally:
        os.killpg(stopped, signal.SIGKILL)


def test_a_link_that_breaks_fails_what_is_waiting(home: Path) -> None:
    connection = LocalConnection("local")
    link = Link(connection, "local", sys.executable)
    waiting = link.stream("telemetry", lambda event: None, interval=60)
    connection.close()
    with pytest.raises(HostError, match="the link broke"):
        waiting.result(30)


def test_no_writable_home_is_no_obstacle(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = new_file(tmp_path / "file", "a file where the home should be")
    link = Link(Shelled("sh", f"export HOME={blocked} XDG_RUNTIME_DIR={tmp_path}"), "odd", sys.executable)
    assert link.request("probe")["hostname"]
    link.close()
    assert (tmp_path / "disttui").is_dir()


def test_node_program_is_compiled_and_loads_in_other_pythons(home: Path, first_link: Link) -> None:
    kept = home / ".cache" / "disttui" / Path(node_parcel().remote_path).name
    with zipfile.ZipFile(kept) as archive:
        names = set(archive.namelist())
        assert "_disttui/node/supervise/supervisor.pyc" in names
        assert {name[:-1] for name in names if name.endswith(".pyc")} <= names
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import _disttui.node.serve.runs as m; print(m.__cached__ or m.__file__)"
    )
    here = ran([sys.executable, "-c", code, str(kept)], check=True)
    assert here.stdout.strip().endswith(".pyc")
    others = [path for path in map(shutil.which, ("python3.12", "python3.13", "python3.9", "python3.8")) if path]
    for other in others:
        found = ran([other, "-c", code, str(kept)])
        if found.returncode == 0:
            assert found.stdout.strip().endswith((".py", ".pyc"))


def test_a_home_that_is_not_there_is_named_with_its_cure(home: Path) -> None:
    home.rmdir()
    with pytest.raises(HostError, match=f"cannot be started in {home}") as seen:
        Link(LocalConnection("local"), "local", sys.executable)
    assert "Set HOME" in seen.value.cure
