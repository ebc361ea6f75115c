"""The wizard and real hosts: keys, passwords, silence, a path on a host, and the way to a running training."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL
from textual.pilot import Pilot
from textual.widgets import Input

from disttui.runner.ids import short
from disttui.runner.runs.registry import known_runs
from disttui.runner.transport.sandbox import LoginSession, LoopbackServer
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.dialogs.prompts import SecretScreen, TrustScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.top.screen import TopScreen
from disttui.tui.wizard import WizardScreen
from tests.cluster.cluster import Cluster
from tests.files import new_file, new_folder
from tests.tui.shelf_kit import asked, environ
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import called, start, states, type_text, walk, wizard
from tests.unit.sshd import Place, new_key, public
from tests.unit.waiting import wait_for


def fresh_keys(cluster: Cluster, folder: Path, trusted: str = "") -> tuple[str, Path]:
    """The cluster's ssh configuration with known hosts of its own that asks for unknown keys."""
    known = new_file(folder / "known", trusted)
    text = cluster.ssh_config.read_text().replace(str(cluster.known_hosts), str(known))
    config = new_file(folder / "config", text.replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask"))
    return str(config), known


@pytest.mark.parametrize("accept", [True, False])
async def test_an_unknown_key_is_shown_and_accepted_or_refused(
    cluster: Callable[..., Cluster], tmp_path: Path, accept: bool
) -> None:
    hosts = cluster(1)
    config, known = fresh_keys(hosts, tmp_path)
    async with wizard(tmp_path, config) as (pilot, opened):
        await walk(pilot, opened, ["node1"], 1)
        await until(pilot, lambda: "^o answer" in screen_text(pilot.app).splitlines()[-1])
        await type_text(pilot, "yes")
        assert opened.query_one("#names", Input).value == "yes", "the line keeps the focus"
        await pilot.press("escape")
        await called(pilot, TrustScreen)
        assert "SHA256:" in screen_text(pilot.app) and "node1" in screen_text(pilot.app)
        await type_text(pilot, "yyy")
        assert isinstance(pilot.app.screen, TrustScreen), "no letter is an answer"
        await pilot.press("ctrl+t" if accept else "escape")
        await until(pilot, lambda: states(opened)["node1"] == ("ready" if accept else "failed"))
        assert ("ed25519" in known.read_text()) == accept
        if not accept:
            await until(pilot, lambda: "host key is unknown" in screen_text(pilot.app))


async def test_a_changed_key_is_a_red_stop(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    hosts = cluster(1)
    other = public(new_key(tmp_path / "other")).decode()
    config, known = fresh_keys(hosts, tmp_path, f"{hosts[0].address},node1 {other}")
    before = known.read_text()
    async with wizard(tmp_path, config) as (pilot, opened):
        await walk(pilot, opened, ["node1"], 1)
        await until(pilot, lambda: states(opened)["node1"] == "failed")
        await press(pilot, "enter", then=lambda: opened._at == 1)
        await pilot.press("enter")
        await pilot.pause(0.2)
        assert opened._at == 1, "the wizard stays there"
        shown = screen_text(pilot.app)
        assert "host key has changed" in shown and re.search("✗ +node1 +failed", shown)
        assert known.read_text() == before


class Wants(LoginSession):
    """Accepts every user who knows the password."""

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        return AUTH_SUCCESSFUL if password == "sesame" else AUTH_FAILED


class PasswordServer(LoopbackServer):
    session = Wants


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The ssh configuration that leads to a server that wants a password."""
    folder = new_folder(tmp_path / "guarded")
    place = Place(folder)
    key = new_key(folder / "host_key")
    host_key = paramiko.Ed25519Key.from_private_key_file(str(key))
    server = PasswordServer(host_key, host_key, folder, "me")
    block = f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n  User me\n"
    yield place.write(block, trusted=f"[127.0.0.1]:{server.port} {public(key).decode()}")
    server.close()
    place.close()


async def test_a_password_is_asked_for_until_it_is_right(guarded: str, tmp_path: Path) -> None:
    async with wizard(tmp_path, guarded) as (pilot, opened):
        await walk(pilot, opened, ["box"], 1)
        for password in ("wrong", "sesame"):
            await called(pilot, SecretScreen)
            question = pilot.app.screen
            await type_text(pilot, password)
            assert password not in screen_text(pilot.app)
            await pilot.press("enter")
            await until(pilot, lambda question=question: pilot.app.screen is not question)  # type: ignore[misc]
        await until(pilot, lambda: states(opened)["box"] == "ready")


async def test_giving_a_password_up_is_reported_with_a_cure(guarded: str, tmp_path: Path) -> None:
    async with wizard(tmp_path, guarded, size=(160, 48)) as (pilot, opened):
        await walk(pilot, opened, ["box"], 1)
        await called(pilot, SecretScreen)
        await press(pilot, "escape", then=lambda: states(opened)["box"] == "failed")
        await press(pilot, "down", "up", shows="login as me@127.0.0.1")


async def test_a_silent_host_does_not_block_the_wizard(tmp_path: Path) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []
    threading.Thread(target=lambda: taken.append(silent.accept()[0]), daemon=True).start()
    config = tmp_path / "config"
    config.write_text(
        f"Host silent\n  HostName 127.0.0.1\n  Port {silent.getsockname()[1]}\n"
        "Host refused\n  HostName 127.0.0.1\n  Port 1\n"
    )
    async with wizard(tmp_path, str(config)) as (pilot, opened):
        await walk(pilot, opened, ["silent", "refused"], 1)
        await until(pilot, lambda: states(opened)["refused"] == "failed")
        assert states(opened)["silent"] == "connecting"
        await press(pilot, "enter", then=lambda: opened._at == 1)
        await press(pilot, "enter")
        assert opened._at == 1
        await press(pilot, "escape", "down", then=lambda: opened._at == 0)
        table = opened.query_one("#hosts-table")
        table.focus()
        table.select("silent")  # type: ignore[attr-defined]
        await press(pilot, "x", then=lambda: states(opened)["silent"] == "left out")
        await until(pilot, lambda: screen_text(pilot.app).count("retries") == 1)
        await press(pilot, "space", then=lambda: opened._view.draft.hosts == ["refused"])
    silent.close()


async def test_a_path_is_completed_on_the_host(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    hosts = cluster(1)
    for name in ("train_long_name.py", "trace.txt", "\x1b]0;evil.py"):
        (hosts.shared / name).touch()
    async with wizard(tmp_path, str(hosts.ssh_config)) as (pilot, opened):
        await walk(pilot, opened, ["node1"], 2)
        await until(pilot, lambda: states(opened)["node1"] == "ready")
        await press(pilot, "enter", "enter", then=lambda: opened._at == 3)
        await pilot.press("right", "down")
        field = opened.query_one("#field-script", Input)
        await until(pilot, lambda: field.has_focus)
        field.value = f"{hosts.shared}/tra"
        field.cursor_position = len(field.value)
        await until(pilot, lambda: "train_long_name.py" in screen_text(pilot.app))
        await until(pilot, lambda: field._suggestion.endswith("train_long_name.py"))
        await press(pilot, "right", then=lambda: field.value == f"{hosts.shared}/train_long_name.py")
        assert opened._view.draft.data["job"] == {"script": f"{hosts.shared}/train_long_name.py"}


@pytest.mark.torch
async def test_from_host_names_to_a_running_training(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    hosts = cluster(2)
    profile = tmp_path / "two.yaml"
    profile.write_text(
        "disttui: 1\nhosts: [node9]\nnum_processes: 1\npython: " + sys.executable + "\n"
        'job: {builtin: bytegpt, args: [--steps, "3", --layers, "1", --width, "32", --sample, "0"]}\n'
    )
    async with wizard(tmp_path, str(hosts.ssh_config), profile=profile) as (pilot, opened):
        assert opened._at == 4, "what already exists is looked at, not walked through"
        opened._go(0)
        await walk(pilot, opened, ["node1", "node2"], 1)
        table = opened.query_one("#hosts-table")
        table.focus()
        table.select("node9")  # type: ignore[attr-defined]
        await press(pilot, "space", then=lambda: opened._view.draft.hosts == ["node1", "node2"])
        await until(pilot, lambda: set(states(opened).values()) == {"ready"}, 120)
        for step in (1, 2, 3, 4):
            await pilot.press("enter")
            await until(pilot, lambda step=step: opened._at == step)  # type: ignore[misc]
        await until(pilot, lambda: "enter starts 2 processes on 2 hosts" in screen_text(pilot.app), 120)
        await start(pilot, opened)
        await until(pilot, lambda: not isinstance(pilot.app.screen, WizardScreen), 120)
        runs, problems = known_runs(environ(tmp_path))
        assert [run.problem for run in runs] == [""] and not problems
        await until(pilot, lambda: known_runs(environ(tmp_path))[0][0].summary()["state"] == "finished", 200)


async def _start_in_sandbox(folder: Path, pilot: Pilot[None], opened: WizardScreen) -> None:
    """Choose the sandbox, and start the built-in job there."""
    await until(pilot, lambda: opened.focused is not None)
    opened.query_one("#hosts-table").focus()
    await press(pilot, "G", "space", then=lambda: opened._view.draft.sandbox)
    await until(pilot, lambda: states(opened) == {"node1": "ready", "node2": "ready"}, 120)
    for step in (1, 2, 3, 4):
        await pilot.press("enter")
        await until(pilot, lambda step=step: opened._at == step)  # type: ignore[misc]
    await until(pilot, lambda: "it ends when you quit disttui" in screen_text(pilot.app), 120)
    await start(pilot, opened)
    await until(pilot, lambda: not isinstance(pilot.app.screen, WizardScreen), 120)
    (run,), _ = known_runs(environ(folder))
    assert run.sandbox and [host.name for host in run.hosts] == ["node1", "node2"]
    events = run.folder / "0" / "events.jsonl"
    await until(pilot, lambda: events.exists() and '"rank"' in events.read_text(), 120)
    other = run.folder / "1" / "events.jsonl"
    await until(pilot, lambda: other.exists() and '"supervisor"' in other.read_text(), 120)


async def test_q_leaves_the_first_step_until_something_is_typed(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(80, 24)) as (pilot, opened):
        await press(pilot, "space", "q")
        assert pilot.app.screen is opened and opened.query_one("#names", Input).value == " q"
        await press(pilot, "escape", "q", then=lambda: isinstance(pilot.app.screen, HomeScreen))


@pytest.mark.torch
async def test_the_sandbox_needs_nothing_and_ends_with_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from disttui.tui.wizard import sandbox

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    async with wizard(tmp_path, size=(80, 24)) as (pilot, opened):
        await _start_in_sandbox(tmp_path, pilot, opened)
        await pilot.press("q")
        for key, leaves in (("q", False), ("enter", False), ("n", False), ("y", True)):
            await until(pilot, lambda: isinstance(pilot.app.screen, HomeScreen))
            await asked(pilot, "q")
            (run,), _ = known_runs(environ(tmp_path))
            assert f"Quit and stop {short(run.run)}?" in screen_text(pilot.app)
            await pilot.press(key)
            await until(pilot, lambda leaves=leaves: pilot.app._exit == leaves)  # type: ignore[misc]
    assert all(_alive(tmp_path))
    sandbox.close()
    wait_for(lambda: not any(_alive(tmp_path)), "the end of the supervisors")
    (run,), _ = known_runs(environ(tmp_path))
    assert run.gone and run.summary()["state"] == "stopped"


@pytest.mark.torch
async def test_one_key_of_a_newcomer_trains_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from disttui.tui.wizard import sandbox

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    try:
        app = DisttuiApp(environ(tmp_path))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.inventory.newcomer)
            await pilot.press("s")
            await until(pilot, lambda: isinstance(app.screen, DashboardScreen), 120)
            await until(pilot, lambda: "loss" in screen_text(app), 120)
            (run,), _ = known_runs(environ(tmp_path))
            assert run.sandbox and [host.name for host in run.hosts] == ["node1", "node2"]
            for link in sandbox._runs[0][2].values():
                link.close()  # as after the app was suspended
            assert await asyncio.to_thread(sandbox.running) == [run.run]
    finally:
        sandbox.close()


@pytest.mark.torch
async def test_a_run_of_a_sandbox_that_lives_is_reached_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home asks its hosts, and its dashboard can be opened again, until the sandbox ends."""
    from disttui.tui.wizard import sandbox

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    async with wizard(tmp_path, size=(80, 24)) as (pilot, opened):
        await _start_in_sandbox(tmp_path, pilot, opened)
        await press(pilot, "q", then=lambda: isinstance(pilot.app.screen, HomeScreen))
        (run,), _ = known_runs(environ(tmp_path))
        for path in run.folder.rglob("*"):
            with suppress(OSError):
                os.utime(path, (1, 1))  # nobody has heard of it for long
        await pilot.press("R")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert "✗ lost" not in screen_text(pilot.app)
        well = re.compile("● running|✓ finished")
        await until(pilot, lambda: well.search(screen_text(pilot.app)), 120)
        await pilot.press("1", "enter")
        await until(pilot, lambda: well.search(screen_text(pilot.app).splitlines()[0]), 120)
        pilot.app.screen.query_one("#hosts").focus()
        await pilot.press("t")  # what its hosts do now: no ssh reaches them by their names
        await until(pilot, lambda: isinstance(pilot.app.screen, TopScreen))
        await until(pilot, lambda: re.search("● (local|this machine)", screen_text(pilot.app)), 60)
    (run,), _ = known_runs(environ(tmp_path))
    assert not run.gone
    sandbox.close()
    wait_for(lambda: not any(_alive(tmp_path)), "the end of the supervisors")
    assert run.gone


def _alive(folder: Path) -> list[bool]:
    """Whether the supervisors of both hosts are there."""
    (run,), _ = known_runs(environ(folder))
    found = []
    for node in ("0", "1"):
        events = (run.folder / node / "events.jsonl").read_text()
        supervisor = next(json.loads(line) for line in events.splitlines() if '"supervisor"' in line)
        found.append(Path(f"/proc/{supervisor['pid']}").exists())
    return found


@pytest.mark.torch
async def test_a_profile_that_is_to_be_launched_needs_no_key(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    hosts = cluster(1)
    profile = tmp_path / "one.yaml"
    profile.write_text(
        f"disttui: 1\nhosts: [node1]\nnum_processes: 1\npython: {sys.executable}\njob: {{command: [echo, trained]}}\n"
    )
    home = environ(tmp_path)
    app = DisttuiApp(home, ssh_config=str(hosts.ssh_config))
    async with app.run_test() as pilot:
        app.router.open_wizard(profile, launch=True)  # which may be over before it is seen
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen), 120)
        (run,), _ = known_runs(home)
        assert run.source == str(profile)
