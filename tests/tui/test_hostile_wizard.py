"""What hosts and their lists tell the wizard is shown, and never obeyed: looked at in the bytes of a real terminal.

`python -m tests.tui.test_hostile_wizard` is the app, with hosts whose every answer ends in an attack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from disttui.runner.errors import HostError
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.hosts.link import Link
from disttui.tui.app import DisttuiApp
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.draft import HostCheck
from disttui.tui.wizard.hosts_screen import run_detached
from tests.tui.hostile import bad
from tests.tui.test_hostile_terminal import _attacked, _left, _see
from tests.tui.tmux import Tmux
from tests.tui.wizard_kit import facts

pytestmark = pytest.mark.timeout(400)
SSH_CONFIG = f"Host Wsafe\nHost {bad('Wssh').split()[0]}\nHost Wnamed\n  HostName {bad('Wname')}\n"
INVENTORY = f"[{bad('Wgroup')}]\nWmember\n{bad('Winv')} ansible_host={bad('Waddress')} ansible_user={bad('Wuser')}\n"


class EvilLink:
    """A link that answers with attacks."""

    def request(self, op: str, timeout: float = 0, **arguments: Any) -> Mapping[str, Any]:
        """Names of files."""
        return {"names": ["Wfile.py", bad("Wpath"), "W\x1b[2J.py"], "more": bad("more")}

    def close(self) -> None:
        """Nothing is open."""


def evil_facts(boot_id: str) -> HostFacts:
    """A probe's answer whose every text is an attack."""
    good = facts("mixed_gpus")
    gpus = tuple(
        replace(
            gpu, name=bad("Wgpu"), uuid=bad("Wuuid"), driver=bad("1"), compute_capability=bad("6.1"),
            processes=tuple(replace(one, user=bad("Wuser"), command=bad("Wcommand")) for one in gpu.processes),
        )
        for gpu in good.gpus
    )  # fmt: skip
    return replace(
        good, boot_id=boot_id, hostname=bad("Whostname"), user=bad("Wlogin"), home=bad("/Whome"), kernel=bad("Wkernel"),
        arch=bad("Warch"), resolves=(bad("127.0.1.1"),), problems=(bad("Wproblem"),), gpus=gpus,
        cpu=replace(good.cpu, model=bad("Wcpu")),
        nics=tuple(replace(nic, name=bad("Wnic"), addresses=(*nic.addresses, bad("fe80::1"))) for nic in good.nics),
        interpreters=tuple(
            replace(one, path=bad("/Wpython"), version=bad("3.11"), torch=bad("2.7.1"), cuda=bad("12"), nccl=bad("2"))
            for one in good.interpreters
        ),
        disk=replace(good.disk, path=bad("/Wdisk"), writable=False, free=1),
        workdir=replace(good.workdir, path=bad("/Wworkdir"), exists=False),
    )  # fmt: skip


class HostileWizard(WizardScreen):
    """The wizard, with hosts that attack it."""

    def _start(self, name: str) -> None:
        if name in ("Wa", "Wb"):
            self._set(HostCheck(name, "ready", evil_facts(name), cast("Link", EvilLink())))
        elif name == "Wask":
            self._set(HostCheck(name, "connecting"))
            run_detached(self._ask)
        else:
            self._set(HostCheck(name, "failed", error=HostError(bad(name), bad("Wwhat"), bad("Wcure"))))

    def _ask(self) -> None:
        assert isinstance(self.app, DisttuiApp)
        prompts = self.app.prompts()
        prompts.accept_host_key(bad("Wunknown"), bad("Wkind"), bad("Wfingerprint"))
        prompts.secret(bad("Wguarded"), bad("Wquestion"))


def main() -> None:
    """Open the wizard on hostile hosts."""
    app = DisttuiApp(os.environ, ssh_config=os.environ["EVIL_SSH_CONFIG"])
    app.call_later(app.push_screen, HostileWizard())
    sys.exit(app.run())


def _type_hosts(screen: Tmux, names: str) -> None:
    screen.press("Down", "/")  # from the line or the list
    screen.until("f1 help")
    screen.type(names)
    screen.press("Enter")


@pytest.mark.tmux
@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
def test_the_wizard(tmp_path: Path, size: tuple[int, int]) -> None:
    config, inventory = tmp_path / "ssh_config", tmp_path / "evil.ini"
    config.write_text(SSH_CONFIG)
    inventory.write_text(INVENTORY)
    app = ("env", f"EVIL_SSH_CONFIG={config}", sys.executable, "-m", "tests.tui.test_hostile_wizard")
    with _attacked(tmp_path, *app, size=size) as screen:
        _see(screen, "step 1 of 5", "Wsafe")
        _type_hosts(screen, str(inventory))
        _see(screen, "Wmember")
        _type_hosts(screen, "Wask")
        _see(screen, "has a question")
        screen.press("C-o")
        _see(screen, "Wunknown", "Wfingerprint")
        screen.answer("Escape", "Wunknown")
        screen.press("C-o")
        _see(screen, "Wguarded", "Wquestion")
        screen.answer("Escape", "Wquestion")
        screen.press("Down", "g", "Space")
        _see(screen, "no host ticked")
        _type_hosts(screen, "Wa Wb Wc")
        _see(screen, "3 hosts ticked, 2 ready", "Wgpu")
        screen.press("Down", "g", "Down", "Down")
        _see(screen, "Wwhat", "Wcure")
        screen.press("Enter")
        _see(screen, "step 2 of 5", "Wcpu", "Wpython", "Wnic", "Wproblem")
        screen.press("Down", "Down")
        _see(screen, "Wcure")
        screen.press("x", "Enter")
        _see(screen, "step 3 of 5", "Wdisk|Wworkdir")
        screen.press("e")
        _see(screen, "\\[x\\] Wgpu", "esc done")
        screen.press("G", "Right", "k", "Right", "k", "Right")
        _left(screen, "esc done")
        screen.press("Enter")
        _see(screen, "step 4 of 5")
        screen.press("Right", "Down")
        screen.type("W")
        _see(screen, "Wfile.py")
        screen.press("Enter")
        _see(screen, "step 5 of 5", "Wdisk|Wworkdir")
        for pane, word in (("3", "run these on each host"), ("2", "script: W"), ("1", "Wdisk|Wworkdir")):
            screen.press(pane)
            _see(screen, word)
        screen.press("G", "g", "?")
        _see(screen, "next pane")
        screen.press("Escape")
        _see(screen, "step 5 of 5")


if __name__ == "__main__":
    main()
