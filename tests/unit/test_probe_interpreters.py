"""Interpreters found by their files, by the profile's shell line, and by asking them; torch is never imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.probe import interpreters
from disttui.runner.node.probe.interpreters import layout, torch_in
from tests.command import ran
from tests.files import new_file, new_folder

_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
_EXACT = ".".join(map(str, sys.version_info[:3]))
# What would be noticed if anything imported it.
_POISON = "import os; os.write(2, b'torch was imported'); os._exit(66)"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a PATH with the system's tools only."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("CONDA_PREFIX", "PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(interpreters, "_CONDA", ("~/miniconda3",))
    return tmp_path / "home"


def _add_torch(site: Path, version: str = "2.13.0+cu126", cuda: str | None = "12.6", nccl: str = "2.21.5") -> None:
    new_file(site / "torch" / "__init__.py", _POISON)
    shown = None if cuda is None else repr(cuda)
    (site / "torch" / "version.py").write_text(
        f"from typing import Optional\n__all__ = ['__version__', 'cuda']\n__version__ = '{version}'\n"
        f"debug = False\ncuda: Optional[str] = {shown}\nhip: Optional[str] = None\n"
    )
    if nccl:
        (site / f"nvidia_nccl_cu12-{nccl}.dist-info").mkdir()


def _venv(folder: Path, *, shares: bool = False, torch: bool = True) -> Path:
    """A virtual environment with the files that `python -m venv` writes."""
    (folder / "bin").mkdir(parents=True)
    base = os.path.realpath(sys.executable)
    (folder / "bin" / "python").symlink_to(base)
    (folder / "bin" / "python3").symlink_to("python")
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(base).parent}\ninclude-system-site-packages = {str(shares).lower()}\nversion = {_EXACT}\n"
    )
    site = new_folder(folder / "lib" / f"python{_VERSION}" / "site-packages")
    if torch:
        _add_torch(site)
    return folder / "bin" / "python"


def _facts(
    python: str = "", activate: str = "", workdir: str = "/", limit: float = 15.0
) -> tuple[list[Any], list[str]]:
    problems: list[str] = []
    wanted = interpreters.Requirements()
    found = interpreters.software(python, activate, workdir, problems, wanted, limit)
    return found["interpreters"], problems


def test_profile_python_in_a_virtual_environment(tmp_path: Path) -> None:
    path = _venv(tmp_path / "mine")
    found, problems = _facts(str(path))
    assert problems == []
    assert found[0] == {
        "path": str(path),
        "version": _EXACT,
        "torch": "2.13.0+cu126",
        "cuda": "12.6",
        "nccl": "2.21.5",
        "mpi": None,
        "source": "profile",
    }


def test_profile_python_with_tilde_and_relative_to_the_workdir(home: Path) -> None:
    _venv(home / "mine")
    assert _facts("~/mine/bin/python")[0][0]["path"] == str(home / "mine/bin/python")
    assert _facts("mine/bin/python", workdir=str(home))[0][0]["path"] == str(home / "mine/bin/python")


def test_venvs_of_workdir_and_home_are_found_and_listed_once(home: Path, tmp_path: Path) -> None:
    _venv(home / ".venv")
    _venv(home / "env", torch=False)
    work = tmp_path / "work"
    _venv(work / "venv")
    (work / ".venv").symlink_to(work / "venv")
    found, problems = _facts(workdir=str(work))
    assert problems == []
    assert [item["path"] for item in found if item["source"] == "venv"] == [
        str(work / ".venv/bin/python"),
        str(home / ".venv/bin/python"),
    ]


def test_environments_elsewhere_are_named_after_all_others(home: Path) -> None:
    for name in ("project/.venv", ".virtualenvs/old", "venvs/new"):
        _venv(home / name)
    _venv(home / "empty/venv", torch=False)
    found = [item["path"] for item in _facts()[0] if item["source"] == "elsewhere"]
    names = [".virtualenvs/old", "venvs/new", "project/.venv"]
    assert [path for path in found if path.startswith(str(home))] == [
        str(home / f"{name}/bin/python") for name in names
    ]


def test_a_program_elsewhere_is_not_run(home: Path) -> None:
    new_file(home / "project/venv/bin/python", f"#!/bin/sh\ntouch {home}/ran\n", 0o755)
    _facts()
    assert not (home / "ran").exists()


def test_conda_environments(home: Path) -> None:
    for name in ("with", "without"):
        prefix = home / "miniconda3" / "envs" / name
        library = prefix / "lib" / "python3.10"
        (library / "site-packages").mkdir(parents=True)
        (library / "os.py").touch()
        (prefix / "bin").mkdir()
        new_file(prefix / "bin" / "python3.10", "#!/bin/sh\nexit 66\n", 0o755)
        (prefix / "bin" / "python").symlink_to("python3.10")
        (prefix / "include" / "python3.10").mkdir(parents=True)
        header = '#define PY_MAJOR_VERSION 3\n#define PY_VERSION              "3.10.13"\n'
        (prefix / "include" / "python3.10" / "patchlevel.h").write_text(header)
    _add_torch(home / "miniconda3/envs/with/lib/python3.10/site-packages", nccl="")
    (home / "miniconda3/envs/with/conda-meta").mkdir()
    (home / "miniconda3/envs/with/conda-meta/nccl-2.19.3.1-h0800d71_1.json").touch()
    found = [item for item in _facts()[0] if item["source"] == "conda"]
    assert [(item["path"], item["version"], item["nccl"]) for item in found] == [
        (str(home / "miniconda3/envs/with/bin/python"), "3.10.13", "2.19.3.1")
    ]


def test_a_shim_is_asked(tmp_path: Path) -> None:
    real = _venv(tmp_path / "real")
    shim = new_file(tmp_path / "shims" / "python3", f'#!/bin/sh\nexec "{real}" "$@"\n', 0o755)
    found, problems = _facts(str(shim))
    assert (found[0]["path"], found[0]["torch"], problems) == (str(real), "2.13.0+cu126", [])


def test_activate_leads_to_an_interpreter(tmp_path: Path) -> None:
    path = _venv(tmp_path / "mine")
    found, problems = _facts(activate=f"echo noise; export PATH={path.parent}:$PATH\n# the end")
    assert problems == []
    assert (found[0]["source"], found[0]["path"], found[0]["torch"]) == ("activate", f"{path}3", "2.13.0+cu126")


def test_activate_starts_in_the_workdir_and_may_set_pythonpath(tmp_path: Path) -> None:
    _add_torch(tmp_path / "modules", version="2.9.1")
    found, problems = _facts(activate="export PYTHONPATH=$PWD/modules", workdir=str(tmp_path))
    assert problems == []
    assert [(item["source"], item["torch"]) for item in found] == [("activate", "2.9.1"), ("path", None)]


def test_misspelt_profile_python_is_not_there(tmp_path: Path) -> None:
    """The files of the environment around it are those of another name."""
    _venv(tmp_path / ".venv")
    for name, why in (("pyhton", "No such file"), ("pip", "not Python 3")):
        path = tmp_path / ".venv" / "bin" / name
        if name == "pip":
            new_file(path, "#!/bin/sh\necho pip 24 >&2\n", 0o755)
        found, problems = _facts(str(path), workdir=str(tmp_path))
        assert str(path) not in [one["path"] for one in found]
        assert len(problems) == 1 and why in problems[0] and str(path) in problems[0]


def test_profile_python_by_name_is_looked_for_after_activate(tmp_path: Path) -> None:
    path = _venv(tmp_path / "mine")
    (path.parent / "python-of-mine").symlink_to("python")
    found, problems = _facts("python-of-mine", f"PATH={path.parent}:$PATH")
    assert problems == []
    assert (found[0]["source"], found[0]["torch"]) == ("profile", "2.13.0+cu126")


def test_a_failing_activate_is_named_with_its_words() -> None:
    found, problems = _facts(activate="conda-is-not-here activate x")
    assert problems == ["activate ended with status 127: bash: line 1: conda-is-not-here: command not found"]
    assert found[0]["source"] == "activate"


@pytest.mark.parametrize("line", ["exit 3", "if true; then"])
def test_an_activate_that_never_comes_to_python(line: str) -> None:
    found, problems = _facts(activate=line)
    assert len(problems) == 1 and problems[0].startswith("activate ended with status")
    assert all(item["source"] == "path" for item in found)


def test_an_activate_that_hangs_is_killed() -> None:
    _, problems = _facts(activate="trap '' TERM; echo waiting for the licence server >&2; sleep 1000", limit=1.0)
    assert problems == ["activate did not end in 1 s and was killed: waiting for the licence server"]


def test_daemon_left_by_activate_is_not_waited_for(tmp_path: Path) -> None:
    found, problems = _facts(activate=f"sleep 1000 & echo $! > {tmp_path}/pid")
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert (found[0]["source"], problems) == ("activate", [])


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python"])
def test_a_missing_python_is_named(python: str) -> None:
    _, problems = _facts(python)
    assert len(problems) == 1 and python in problems[0] and "No such file" in problems[0]


def test_something_else_than_a_python_is_named(tmp_path: Path) -> None:
    program = new_file(tmp_path / "python", "#!/bin/sh\necho 'wrong architecture' >&2; exit 1\n", 0o755)
    _, problems = _facts(str(program))
    assert problems == [f"{program} cannot be inspected: not Python 3 (wrong architecture)"]


def test_user_site_pth_files_and_shared_environments(home: Path, tmp_path: Path) -> None:
    user = new_folder(home / ".local" / "lib" / f"python{_VERSION}" / "site-packages")
    _add_torch(tmp_path / "source tree", version="2.14.0a0+git1234", cuda=None, nccl="")
    (user / "easy.pth").write_text(f"# a comment\nimport os; os._exit(66)\n/no/such/folder\n{tmp_path}/source tree\n")
    sharing = layout(str(_venv(tmp_path / "shares", shares=True, torch=False)))
    alone = layout(str(_venv(tmp_path / "alone", torch=False)))
    assert sharing is not None and alone is not None
    found = torch_in(sharing.folders)
    assert found is not None
    assert (found.version, found.cuda, found.nccl) == ("2.14.0a0+git1234", None, None)
    assert torch_in(alone.folders) is None


def test_the_real_interpreter_agrees_with_its_files() -> None:
    """The folders read from files hold every folder that the interpreter itself would import packages from."""
    known = layout(sys.executable)
    if known is None:
        pytest.skip("this interpreter's layout has to be asked for")
    question = "import json, sys; print(json.dumps([sys.prefix, sys.path]))"
    answer = ran([sys.executable, "-c", question], check=True)
    prefix, path = json.loads(answer.stdout)
    assert known.prefix == prefix
    assert known.version == _EXACT
    assert {entry for entry in path if entry.endswith("-packages")} <= set(known.folders)


@pytest.mark.parametrize(
    ("version", "line", "shown"),
    [
        ("2.7.0a0+git1a2b", "hip: Optional[str] = '6.3.42131-fa1d09'", "2.7.0a0+git1a2b.rocm"),
        ("2.7.0", "hip = '6.3'", "2.7.0+rocm"),
        ("2.7.0+rocm6.3", "hip: Optional[str] = '6.3'", "2.7.0+rocm6.3"),
        ("2.7.0a0+git1", "xpu: Optional[str] = '20250000'", "2.7.0a0+git1.xpu"),
        ("2.7.0", "hip: Optional[str] = None", "2.7.0"),
    ],
)
def test_a_torch_built_from_source_names_what_it_is_built_for(
    tmp_path: Path, version: str, line: str, shown: str
) -> None:
    new_file(tmp_path / "torch" / "version.py", f"__version__ = '{version}'\ncuda: Optional[str] = None\n{line}\n")
    found = torch_in([str(tmp_path)])
    assert found and found.version == shown


def test_hostile_version_file(tmp_path: Path) -> None:
    new_file(tmp_path / "torch" / "version.py", b"\xff\xfe\0__version__ = " + b"(" * 1000)
    assert torch_in([str(tmp_path)]) is None


def test_folder_in_place_of_a_library_leaks_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert interpreters.needed(str(tmp_path)) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_library_whose_tables_lie_beyond_any_file_is_none(tmp_path: Path) -> None:
    head = bytearray(b"\x7fELF\x02\x01".ljust(64, b"\0"))
    head[32:40], head[54:58] = b"\xff" * 8, bytes((56, 0, 1, 0))
    (path := tmp_path / "x.so").write_bytes(head)
    assert interpreters.needed(str(path)) is None
