"""Home, top, help and what lies over them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from disttui.runner.runs.notes import Notes, write_notes
from disttui.runner.runs.watch import HostNow
from disttui.tui.app import DisttuiApp
from disttui.tui.home.screen import HomeScreen
from disttui.tui.load.feed import TopChanged
from tests.tui import shelf_kit as kit
from tests.tui import top_kit
from tests.tui.scenes import Scene, hosts, in_replay, in_top, in_wizard
from tests.tui.snap import screen_text, until


def one_profile(folder: Path) -> None:
    """Somebody who has saved a profile, and run nothing yet."""
    kit.add_profile(folder, "pair", "disttui: 1\nhosts: [ada, grace]\nnum_processes: 4\njob: {builtin: bytegpt}\n")


def many_runs(folder: Path) -> None:
    """More runs than rows, of every state, some with tags."""
    kit.busy_machine(folder)
    ends = ("finished", "failed", "stopped", "finished", "lost")
    for number in range(60):
        place = kit.add_run(
            folder, f"sweep-lr-{number:02}-{number * 997 % 65536:04x}", {"ada": 4, "grace": 4, "edsger": 2},
            ago=100_000 + 7919 * number, heard=90_000 + 7919 * number, end=ends[number % 5],
            step=1000 * number, steps=60_000, loss=4 - number / 20,
        )  # fmt: skip
        if number % 3 == 0:
            write_notes(place, Notes(("baseline", "lr3e-4")[: 1 + number % 2], "compare with the one of Ada's paper"))


def queued(folder: Path) -> None:
    """A run in line on its hosts, and one in Slurm's queue."""
    kit.busy_machine(folder)
    place = kit.add_run(folder, "vit-7f3a", {"ada": 4, "grace": 4}, ago=3800)
    spec = json.loads((place / "0" / "spec.json").read_text())
    (place / "0" / "spec.json").write_text(json.dumps({**spec, "queue": {"round": 0}}))
    event = {"t": kit.NOW - 5, "e": "note", "level": "info", "text": "queued: ada: bob's llama-02c1 holds GPU 1"}
    (place / "0" / "events.jsonl").write_text(f"{json.dumps(event)}\n")
    os.utime(place / "0" / "events.jsonl", (kit.NOW - 5, kit.NOW - 5))
    job = kit.add_run(folder, "batch-91bd", {"login.cluster.example": 2}, ago=200)
    (job / "0" / "events.jsonl").unlink()
    said = {"state": "queued", "job": "4711", "waits": "Resources", "started": kit.NOW - 200}
    (job / "seen.json").write_text(json.dumps(said))
    os.utime(job / "seen.json", (kit.NOW - 5, kit.NOW - 5))


def failed(folder: Path) -> None:
    """A run that failed with a cause, after a while of losses."""
    kit.busy_machine(folder)
    place = kit.add_run(folder, "vit-5e20", {"ada": 4, "grace": 4}, ago=900, heard=100, end="failed", step=1, loss=4.0)
    metrics = [{"t": 1, "step": step, "loss": 4.0 - step / 100} for step in range(300)]
    (place / "0" / "attempt-1" / "rank-0.metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in metrics))
    end = json.loads((place / "0" / "exit.json").read_text())
    words = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB, 1.32 GiB are free"
    cause = {"node": 0, "rank": 3, "kind": "exception", "type": "torch.OutOfMemoryError", "message": words}
    (place / "0" / "exit.json").write_text(json.dumps({**end, "cause": cause}))


async def _read_only(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, DisttuiApp) and isinstance(app.screen, HomeScreen)
    app.read_only = True
    app.screen._show(app.inventory)
    app.screen.refresh_bindings()


def live(t: float = kit.NOW) -> tuple[HostNow, ...]:
    """The hosts of the busy machine: one is full, one has room and another user's run, one refuses."""
    ada, grace = top_kit.host(0, 8, t), top_kit.host(1, 4, t)
    mine = top_kit.lease("alice", [0, 1, 2, 3], run="pair-7f3a", since=t - 751)
    bob = top_kit.lease("bob", [4, 5, 6, 7], run="llama-02c1", since=t - 7200)
    refused = HostNow("edsger", "failed", since=t - 20, problem="connection refused by 192.0.2.7 port 22",
                      cure="Is an SSH server running there?")  # fmt: skip
    here = HostNow("local", "seen", top_kit.host(2, 0, t).load, t)
    return (
        replace(ada, name="ada", leases=(mine, bob)),
        replace(grace, name="grace", leases=(top_kit.lease("carol", [3], kind="hand", run="", until=t + 7200),)),
        refused, here,
    )  # fmt: skip


async def watched(pilot: Pilot[None]) -> None:
    """The home screen, after its hosts have reported."""
    pilot.app.screen.post_message(TopChanged(live(), kit.NOW))
    await until(pilot, lambda: "GPUs free" in screen_text(pilot.app))


async def _toasts(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, DisttuiApp)
    app.notify("pair-7f3a stopped after 0:04")
    app.notify("library team: 2 of its files could not be read", severity="warning")
    app.notify("10.0.0.14:22 refuses the connection", title="pair-7f3a was not stopped", severity="error")


SCENES = (
    Scene("home-live", (80, 24), act=watched),
    Scene("profile-error", (80, 24), ["2", "enter"]),
    Scene("confirm", (80, 24), ["x"]),
    Scene("help", (100, 30), ["question_mark"]),
    Scene("palette", (100, 30), ["ctrl+p", "p", "a"]),
    Scene("palette-all", (80, 24), ["ctrl+p"]),
    Scene("themes", (80, 24), ["ctrl+p", *"theme", "enter"]),
    Scene("top-leased", (120, 36), act=in_top(top_kit.leased)),
    Scene("help-shell", (80, 24), ["question_mark", "slash", *"lease"]),
    Scene("one-profile", (80, 24), prepare=one_profile),
    Scene("many-runs", (80, 24), prepare=many_runs),
    Scene("queued", (80, 24), ["d"], prepare=queued),
    Scene("home-failed", (80, 24), ["j", "j", "d"], prepare=failed),
    Scene("home-profiles", (80, 24), ["2", "j", "d"]),
    Scene("home-hosts", (80, 24), ["3", "d"]),
    Scene("home-filter", (80, 24), ["slash", *"pair"]),
    Scene("home-marked", (80, 24), ["j", "j", "space", "space", "o"], prepare=many_runs),
    Scene("notes", (80, 24), ["a"], prepare=many_runs),
    Scene("delete", (80, 24), ["j", "j", "space", "space", "space", "D"]),
    Scene("clean-up", (80, 24), ["j", "j", "C"]),
    Scene("run-profile", (80, 24), ["2", "j", "r"]),
    Scene("read-only", (80, 24), act=_read_only),
    Scene("toasts", (80, 24), act=_toasts),
    Scene("top-cpu", (80, 24), act=in_top(hosts(3, 0))),
    Scene("top-16", (80, 24), act=in_top(hosts(16, 8))),
    Scene("top-trouble", (80, 24), act=in_top(hosts(2, 2), top_kit.troubled)),
    Scene("top-host", (80, 24), act=in_top(hosts(2, 8), keys=["enter"])),
    Scene("top-gpu", (80, 24), act=in_top(hosts(2, 8), keys=["enter", "j", "enter"])),
    Scene("top-processes", (80, 24), act=in_top(hosts(2, 8), keys=["tab", "s", "z"])),
    Scene("top-filter", (80, 24), act=in_top(hosts(2, 8), keys=["tab", "slash", *"bob"])),
    Scene("help-wizard", (80, 24), act=in_wizard(1, ["gpu1"], "f1")),
    Scene("help-processes", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "question_mark")),
    Scene("help-replay", (80, 24), act=in_replay("question_mark")),
    Scene("help-log", (80, 24), act=in_replay("l", "question_mark", "slash", *"find")),
    Scene("help-top", (80, 24), act=in_top(hosts(2, 8), keys=["question_mark"])),
    Scene("home-no-colour", (80, 24), prepare=failed, environ={"NO_COLOR": "1"}),
)
