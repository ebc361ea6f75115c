"""docs/api.md: its example does what the page says, and its names are there."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import disttui as api
from tests import api_table
from tests.command import ran
from tests.light import light_python

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_COUNT = """
import json, os, sys, time
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    for step in range(int(sys.argv[2])):
        metrics.write(json.dumps({"step": step, "loss": 1.5}) + "\\n")
        metrics.flush()
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_example_on_the_api_page_runs(tmp_path: Path) -> None:
    """With a profile of the user's own by the name of the example's, whose job does not train."""
    script = tmp_path / "count.py"
    script.write_text(_COUNT)
    own = {"disttui": 1, "hosts": ["node1", "node2"], "python": light_python(tmp_path / "light")}
    profile = tmp_path / ".config" / "disttui" / "profiles" / "2node.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(json.dumps({**own, "job": {"script": str(script)}}))
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = ran([sys.executable, "-c", example], cwd=tmp_path, env=env, timeout=230)
    assert done.returncode == 0, done.stderr
    assert "node1 seen\n" in done.stdout and done.stderr == ""
    assert re.search(r"^exit code 0 loss \d", done.stdout, re.MULTILINE), done.stdout
    assert "stopped on node1, node2 nothing left: True" in done.stdout


def test_every_error_in_the_table_is_in_the_package() -> None:
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = {name for line in table for name in re.findall(r"`([A-Za-z_]+)[(`]", line)}
    assert named <= set(api.__all__), named - set(api.__all__)


def test_every_function_of_the_package_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    functions = [name for name in api.__all__ if name.islower()]
    assert [name for name in functions if not re.search(rf"[`.]{name}[`(]", page)] == []


def test_the_signatures_on_the_page_are_those_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == api_table.page()


def test_every_name_of_the_package_can_be_imported() -> None:
    for name in api.__all__:
        assert getattr(api, name).__module__.startswith(("disttui.", "types")), name


def test_the_package_alone_imports_nothing_slow() -> None:
    code = (
        "import sys, disttui.runner.api; print(*sorted({'pydantic', 'paramiko', 'yaml', 'click'} & set(sys.modules)))"
    )
    done = ran([sys.executable, "-c", code], check=True)
    assert done.stdout.strip() == ""
