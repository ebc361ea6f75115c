"""Where a traceback of a host is in the files of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttui.runner.diagnose.frames import Frame
from disttui.runner.errors import InputError
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.tui.dashboard.ended import on_this_machine

_CODE = "import torch\n\nraise ValueError('no such token')\n"


def _run(folder: Path, host: str, **known: object) -> KnownRun:
    fields: dict[str, object] = {"run_dir": "~", "started": 0.0, "by": "", **known}
    return KnownRun("x-1", folder, (KnownHost(host, host),), {}, **fields)  # type: ignore[arg-type]


def _traceback(file: str, text: str = "raise ValueError('no such token')") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 3, in <module>\n    {text}\nValueError: no'


def test_a_file_in_the_job_folder_is_found_beside_the_profile(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(_CODE)
    run = _run(tmp_path, "n8", source=str(tmp_path / "profiles" / "two.yaml"))
    file = "/home/ada/project/src/train.py"
    found = on_this_machine(run, 0, "/home/ada/project", Frame(file, 3, "<module>"), _traceback(file))
    assert found == tmp_path / "src" / "train.py"


def test_another_version_of_the_file_is_not_opened_but_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_CODE)
    run = _run(tmp_path, "n8", source=str(tmp_path / "two.yaml"))
    file = "/srv/train.py"
    with pytest.raises(InputError, match=r"n8: /srv/train.py:3: .*/train.py on this machine differs"):
        on_this_machine(run, 0, "/srv", Frame(file, 3, "<module>"), _traceback(file, "raise KeyError"))


@pytest.mark.parametrize("file", ["/srv/gone.py", "/srv/../etc/passwd", "/dev/zero", "../../x.py", "x\x1b[2J.py"])
def test_a_missing_file_is_reported_and_no_other_is_opened(tmp_path: Path, file: str) -> None:
    run = _run(tmp_path, "n8", source=str(tmp_path / "two.yaml"))
    with pytest.raises(InputError, match="no such file on this machine") as error:
        on_this_machine(run, 0, "/srv", Frame(file, 3, "f"), _traceback(file))
    assert "\x1b" not in str(error.value)


def test_on_this_machine_itself_the_path_is_the_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_CODE)
    file = str(tmp_path / "train.py")
    assert on_this_machine(_run(tmp_path, "local"), 0, "~", Frame(file, 3, "f"), "") == Path(file)
    with pytest.raises(InputError, match="on this machine differs"):
        on_this_machine(_run(tmp_path, "local"), 0, "~", Frame(file, 3, "f"), _traceback(file, "other()"))


def test_a_home_folder_unknown_on_this_machine_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_CODE)
    run = _run(tmp_path, "n8", source=str(tmp_path / "two.yaml"))
    found = on_this_machine(run, 0, "~no-such-user/job", Frame("train.py", 3, "f"), _traceback("train.py"))
    assert found == tmp_path / "train.py"
