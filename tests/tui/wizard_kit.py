"""The wizard in a test: an app with a home of its own, played to a step, with real hosts or with recorded ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from disttui.runner.api import preparing
from disttui.runner.errors import HostError
from disttui.runner.hosts.facts import HostFacts, with_leases
from disttui.runner.hosts.ship import Parcel
from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.question import Question
from disttui.tui.wizard import WizardScreen, hosts_screen
from disttui.tui.wizard.draft import HostCheck
from tests.files import new_file
from tests.tui.shelf_kit import asked, environ
from tests.tui.snap import press, screen_text, until
from tests.tui.top_kit import lease

FACTS = Path(__file__).parents[1] / "data" / "facts"


def facts(name: str, **changes: Any) -> HostFacts:
    """A recorded probe, with some of its JSON changed."""
    return HostFacts.from_json({**json.loads((FACTS / f"{name}.json").read_text()), **changes})


HOSTS: dict[str, HostFacts | HostCheck] = {
    "gpu1": facts("a100x8"),
    "gpu2": facts("mixed_gpus"),
    "gpu3": with_leases(
        facts("a100x8", leases=[lease("bob", [0, 1, 2, 3]), lease("eve", [4, 5, 6, 7], run="vit-02c1")])
    ),
    "desk": facts("neglected"),
    "silent": HostCheck("silent", "connecting"),
    "down": HostCheck("down", "failed", error=HostError(
        "down", "10.0.0.14:22 refuses the connection", "Check that an SSH server runs there, and the port.")),
    "changed": HostCheck("changed", "failed", error=HostError(
        "changed", "its host key has changed: ssh-ed25519 SHA256:4mA3rvvJq0H7vI3bhoP0wQqJcH6y6m3vLJxO9q2nMeo does not "
        "match /home/ada/.ssh/known_hosts:17 (ssh-ed25519 SHA256:Zk1oEQ4uQ2mS7b8PzZpX0y9cX4D1kq0Jm1ZrWc1hB0A); "
        "someone may be intercepting the connection", "If the host was reinstalled, remove the old key with "
        "`ssh-keygen -R '[10.0.0.15]:22' -f '/home/ada/.ssh/known_hosts'`.")),
}  # fmt: skip
"""Hosts of every kind, as they answer."""


@asynccontextmanager
async def wizard(
    folder: Path,
    ssh_config: str | None = None,
    size: tuple[int, int] = (100, 30),
    profile: Path | None = None,
    *,
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Pilot[None], WizardScreen]]:
    """The app with the wizard open."""
    home = environ(folder, TEXTUAL_ANIMATIONS="none", **(more or {}))
    app = DisttuiApp(home, ssh_config=ssh_config or str(_empty(folder)))
    async with app.run_test(size=size) as pilot:
        app.router.open_wizard(profile)
        await until(pilot, lambda: isinstance(app.screen, WizardScreen) and app.screen.is_mounted)
        opened = app.screen
        assert isinstance(opened, WizardScreen)
        await pilot.pause()
        yield pilot, opened


async def called(pilot: Pilot[None], kind: type[Question[Any]]) -> None:
    """Call for the question that waits while a line has the focus, until it takes answers."""

    def answers() -> bool:
        return isinstance(pilot.app.screen, kind) and pilot.app.screen.ready and pilot.app.screen.focused is not None

    await until(pilot, lambda: isinstance(pilot.app.screen, kind) or "^o answer" in screen_text(pilot.app))
    if not isinstance(pilot.app.screen, kind):
        await pilot.press("ctrl+o")
    await until(pilot, answers)


async def type_text(pilot: Pilot[None], text: str) -> None:
    """Press the keys of a text."""
    await press(pilot, *({" ": "space", "-": "minus", ".": "full_stop"}.get(one, one) for one in text))


def states(opened: WizardScreen) -> dict[str, str]:
    """Host → how far it is."""
    return {name: state.state for name, state in opened._view.states.items()}


def record(monkeypatch: pytest.MonkeyPatch, hosts: Mapping[str, HostFacts | HostCheck]) -> None:
    """Have these hosts answer at once, with recorded probes; nothing is reached."""

    def start(self: WizardScreen, name: str) -> None:
        found = hosts[name]
        self._set(found if isinstance(found, HostCheck) else HostCheck(name, "ready", found))

    monkeypatch.setattr(WizardScreen, "_start", start)
    monkeypatch.setattr(hosts_screen, "find_all", lambda *_: [])
    monkeypatch.setattr(preparing, "train_parcel", lambda: Parcel("train", b""))


async def walk(pilot: Pilot[None], opened: WizardScreen, names: Sequence[str], step: int) -> None:
    """Type hosts and go on to a step, counted from 1."""
    opened.query_one("#names").focus()
    await pilot.pause()
    pilot.app.post_message(Paste(" ".join(names)))
    if names:
        await pilot.press("enter")
    await pilot.pause()
    for wanted in range(1, step):
        await pilot.press("enter")
        await until(pilot, lambda wanted=wanted: opened._at == wanted)  # type: ignore[misc]
    await pilot.pause()


@asynccontextmanager
async def walked(
    folder: Path,
    hosts: Mapping[str, HostFacts | HostCheck],
    step: int,
    size: tuple[int, int] = (100, 30),
    *,
    names: Sequence[str] | None = None,
) -> AsyncIterator[tuple[Pilot[None], WizardScreen]]:
    """The wizard at a step, with recorded hosts: those named, or else all."""
    with pytest.MonkeyPatch.context() as patches:
        record(patches, hosts)
        async with wizard(folder, size=size) as (pilot, opened):
            await walk(pilot, opened, list(hosts) if names is None else names, step)
            yield pilot, opened


async def start(pilot: Pilot[None], opened: WizardScreen) -> None:
    """Press enter at the last step, and confirm."""
    await until(pilot, lambda: opened.check_action("launch", ()))
    await asked(pilot, "enter")
    await pilot.press("y")


def _empty(folder: Path) -> Path:
    return new_file(folder / "no-ssh-config")
