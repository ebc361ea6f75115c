"""One run over hosts whose logins have five different shells, all with start-up files that print."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.cluster.test_cluster import NOISE
from tests.cluster.typed import User

pytestmark = pytest.mark.torch


def test_every_login_shell_takes_part(user: Callable[..., User]) -> None:
    """dash, bash, zsh, fish and tcsh: the same script runs under each, and sees its login's environment."""
    shells = {shell: f"/usr/bin/{shell}" for shell in NOISE}
    assert all(os.access(path, os.X_OK) for path in shells.values()), "install the Debian packages dash zsh fish tcsh"
    me = user(len(shells), logins=shells)
    for host, (login, (file, text)) in zip(me.cluster.hosts, NOISE.items(), strict=True):
        host.run(f"mkdir -p $(dirname ~{login}/{file}); cat > ~{login}/{file} <<'EOF'\n{text}EOF", check=True)
    script = me.script("import os\nprint(os.environ['SHELL'], os.environ['HOME'], os.environ['WORLD_SIZE'])\n")
    hosts = [f"{login}@{host.name}" for host, login in zip(me.cluster.hosts, shells, strict=True)]
    running = me.run(me.profile({"script": str(script)}, hosts))
    said = sorted(line.partition("│ ")[2] for line in running.stdout.splitlines())
    assert said == sorted(f"{path} /home/{login} 5" for login, path in shells.items())
    assert "NOISE" not in running.stdout + running.stderr
