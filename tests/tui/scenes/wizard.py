"""The wizard, its questions and forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import cast
from unittest.mock import patch

from textual.pilot import Pilot

from disttui.runner.library.syncing import KeptBoth, Synced
from disttui.runner.profile.library import Library
from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.profile_error import ProfileErrorScreen
from disttui.tui.dialogs.question import Question
from disttui.tui.wizard import WizardScreen
from tests.tui.scenes import KEY, Scene, in_wizard, question_asked
from tests.tui.shelf_kit import add_profile, busy_machine, shows
from tests.tui.snap import press, until


def profile_of(text: str, mode: int = 0o644) -> Callable[[Path], object]:
    """A user whose one profile, `pair`, has this text."""

    def prepare(folder: Path) -> None:
        add_profile(folder, "pair", f"disttui: 1\nname: pair\n{text}").chmod(mode)

    return prepare


def opened(*keys: str, launch: bool = False) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Open the profile, as `e` or `r` on the home screen does."""

    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        (profile,) = [row.path for row in app.inventory.profiles if row.name == "pair"]
        app.router.open_wizard(profile, launch=launch)
        await until(pilot, lambda: isinstance(app.screen, (WizardScreen, Question)))
        await pilot.pause(0.3)
        await pilot.press(*keys)

    return play


def shared(folder: Path) -> None:
    """A library of a team, whose folder is there, and one that is not."""
    busy_machine(folder)
    for name in ("resnet", "llama-7b"):
        path = folder / "team" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("disttui: 1\ndescription: of the team\nhosts: [gpu1]\njob: {script: train.py}\n")
    config = folder / "config" / "disttui" / "config.yaml"
    config.write_text("libraries: [{name: team, folder: ~/team}, {name: lab, git: 'git@hub:lab/profiles.git'}]\n")


async def conflict(pilot: Pilot[None]) -> None:
    """Sync a library in which a colleague has changed the same keys."""
    kept = KeptBoth("llama-7b.yaml", "llama-7b.ada.yaml")
    done = Synced(received=("resnet.yaml", "llama-7b.yaml"), sent=1, kept=(kept,))
    library = Library("lab", "team", Path("lab"), url="git@hub:lab/profiles.git")
    with patch("disttui.runner.api.libraries.sync_libraries", lambda *_: iter([(library, done)])):
        await press(pilot, "S", then=lambda: shows(cast(DisttuiApp, pilot.app), "llama-7b.ada"))


async def edited(pilot: Pilot[None]) -> None:
    """Come back from the editor with a profile that has an error."""

    def edit(command: Sequence[str], **_: object) -> None:
        Path(command[-1]).write_text("disttui: 1\nhosts: [ada, grace]\nnum_procesess: 4\njob: {builtin: bytegpt}\n")

    with patch.object(DisttuiApp, "suspend", nullcontext), patch("disttui.tui.terminal.subprocess.run", edit):
        await press(pilot, "2", "j", "e", then=lambda: isinstance(pilot.app.screen, ProfileErrorScreen))
        await pilot.pause(0.3)


def to_replace(folder: Path) -> None:
    """Somebody who has saved the profile that the wizard makes."""
    busy_machine(folder)
    add_profile(folder, "bytegpt-2node", "disttui: 1\nhosts: [gpu1, gpu2]\njob: {builtin: bytegpt}\n")


_TWO = "hosts: [gpu1, gpu2]\n"
_JOB_OF_SLURM = """
hosts: [desk]
num_processes: 2
job: {builtin: bytegpt}
slurm: {nodes: 3, partition: gpu}
"""

SCENES = (
    Scene("hosts-none", (80, 24), act=in_wizard(1, [])),
    Scene("hosts", (80, 24), act=in_wizard(1)),
    Scene("hosts-key-unknown", (80, 24), act=question_asked(lambda prompts: prompts.accept_host_key("gpu1", *KEY))),
    Scene("hosts-password", (80, 24), act=question_asked(lambda prompts: prompts.secret("gpu1", "Password for ada: "))),
    Scene("hosts-down", (80, 24), act=in_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "j", "j")),
    Scene("hosts-silent", (80, 24), act=in_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "j")),
    Scene("hosts-changed", (80, 24), act=in_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "G", "k", "k")),
    Scene("hosts-leave", (80, 24), act=in_wizard(1, ["gpu1"], "escape")),
    Scene("hardware", (80, 24), act=in_wizard(2)),
    Scene("hardware-mixed", (80, 24), act=in_wizard(2, ["gpu1", "gpu2", "desk", "down", "silent"], "j")),
    Scene("hardware-down", (80, 24), act=in_wizard(2, ["gpu1", "gpu2", "desk", "down", "silent"], "j", "j", "j")),
    Scene("processes-cpu", (80, 24), act=in_wizard(3, ["gpu1", "desk"], "tab", "j")),
    Scene("host-form", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "j", "e", "j", "space", "j")),
    Scene("host-form-8", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "e")),
    Scene("job", (80, 24), act=in_wizard(4)),
    Scene(
        "job-script",
        (80, 24),
        act=in_wizard(4, ["gpu1", "gpu2"], "right", "down", *"train.py", "down", "quotation_mark"),
    ),
    Scene("check-profile", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "2")),
    Scene("check-commands", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "3")),
    Scene("check-errors", (80, 24), act=in_wizard(5, ["gpu1", "desk"])),
    Scene("check-save", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "s")),
    Scene("hardware-leased", (80, 24), act=in_wizard(2, ["gpu3"])),
    Scene("check-leased", (80, 24), act=in_wizard(5, ["gpu3"])),
    Scene("check-queued", (80, 24), act=in_wizard(5, ["gpu3"], "w")),
    Scene("hosts-help", (80, 24), act=in_wizard(1, ["gpu1", "gpu2"], "down", "question_mark")),
    Scene("hosts-palette", (80, 24), act=in_wizard(1, ["gpu1"], "ctrl+p", *"step")),
    Scene("hosts-filter", (80, 24), act=in_wizard(1, ["gpu1", "gpu2"], *"sand")),
    Scene("hosts-leaving-out", (80, 24), act=in_wizard(1, ["gpu1", "down", "changed"])),
    Scene("hardware-cpu", (80, 24), act=in_wizard(2, ["desk"])),
    Scene("hardware-help", (80, 24), act=in_wizard(2, ["gpu1", "gpu2"], "question_mark")),
    Scene("processes-run", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "tab", "j", "j", "right")),
    Scene("processes-help", (80, 24), act=in_wizard(3, ["gpu1", "gpu2"], "question_mark")),
    Scene("job-module", (80, 24), act=in_wizard(4, ["gpu1", "gpu2"], "right", "right", "down", *"train")),
    Scene("job-command", (80, 24), act=in_wizard(4, ["gpu1", "gpu2"], "left", "down", *"./train.sh")),
    Scene("job-help", (80, 24), act=in_wizard(4, ["gpu1", "gpu2"], "question_mark")),
    Scene("check-help", (80, 24), act=in_wizard(5, ["gpu1", "gpu2"], "question_mark")),
    Scene("check-wrong-path", (80, 24), act=in_wizard(5, ["gpu1"], "s", "end", *["backspace"] * 17, "enter")),
    *(
        Scene(
            f"check-{launcher}",
            (80, 24),
            prepare=profile_of(f"{_TWO}job: {{script: train.py}}\nlaunch: {{launcher: {launcher}}}\n"),
            act=opened("3"),
        )
        for launcher in ("mpirun", "deepspeed", "accelerate")
    ),
    Scene(
        "check-parallel",
        (80, 24),
        prepare=profile_of("hosts: [gpu1]\njob: {builtin: bytegpt}\nparallel: {tp: 4}\n"),
        act=opened(),
    ),
    Scene(
        "check-edited",
        (80, 24),
        prepare=profile_of(f"{_TWO}job: {{builtin: bytegpt}}\n"),
        act=opened("escape", "escape", "right", "enter", "enter", "2"),
    ),
    Scene("check-slurm-job", (80, 24), prepare=profile_of(_JOB_OF_SLURM), act=opened("3")),
    Scene("processes-slurm-job", (80, 24), prepare=profile_of(_JOB_OF_SLURM), act=opened("escape", "escape")),
    Scene(
        "shared-profile",
        (80, 24),
        prepare=profile_of(f"{_TWO}job: {{script: train.py}}\nactivate: source v/bin/activate\n", 0o666),
        act=opened(),
    ),
    Scene(
        "launching",
        (80, 24),
        prepare=profile_of("hosts: [gpu1, silent]\njob: {builtin: bytegpt}\n"),
        act=opened(launch=True),
    ),
    Scene("library", (80, 24), ["2"], prepare=shared),
    Scene("library-details", (80, 24), ["2", "j", "d"], prepare=shared),
    Scene("library-conflict", (80, 24), ["2"], prepare=shared, act=conflict),
    Scene("edited-wrong", (80, 24), act=edited),
    Scene("check-replace", (80, 24), prepare=to_replace, act=in_wizard(5, ["gpu1", "gpu2"], "s", "enter")),
    Scene("too-small", (80, 24), act=lambda pilot: pilot.resize_terminal(39, 11)),
    Scene("library-empty", (80, 24), ["2"], prepare=lambda folder: folder.mkdir(exist_ok=True)),
)
