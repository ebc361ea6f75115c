"""`job.environment` on a host: an environment is built once, from wheels, whatever happens to those who build it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.carrying import collect_code
from disttui.runner.api.environments import collect_requirements
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.link import Link
from disttui.runner.profile.load import load
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.protocol.requests import Offline
from disttui.runner.sync import wheels
from disttui.runner.sync.wheels import download
from disttui.runner.transport.local import LocalConnection
from tests.command import ran, running
from tests.files import new_file, new_folder
from tests.kept import has_been_reached
from tests.unit.waiting import wait_for


def wheel(folder: Path, name: str, version: str, needs: str = "") -> Path:
    """A wheel with one module, made by hand."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for file, text in files.items():
            made.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{file},sha256={digest},{len(text)}")
        made.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
    return path


class Host:
    """This machine with a home of its own."""

    def __init__(self, home: Path, wheels: Path) -> None:
        self.home, self.wheels = home, wheels
        self.top = home / ".cache/disttui/environments"
        self.links: list[Link] = []

    def link(self) -> Link:
        self.links.append(Link(LocalConnection("local"), "local", sys.executable))
        return self.links[-1]

    def request(self, files: Mapping[str, str], **more: Any) -> dict[str, Any]:
        return {
            "files": dict(files), "python": sys.executable, "inherit": False, "wheels": str(self.wheels), "sent": "",
            "build": True, "env": {}, **more,
        }  # fmt: skip

    def begin(self, files: Mapping[str, str], **more: Any) -> Future[Any]:
        return self.link().stream("environment", lambda item: None, **self.request(files, **more))

    def build(self, files: Mapping[str, str], **more: Any) -> Any:
        return self.begin(files, **more).result(120)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    home = new_folder(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    has_been_reached(home)
    made = Host(home, tmp_path / "wheels")
    wheel(made.wheels, "aaa", "1.0", "bbb")
    wheel(made.wheels, "bbb", "2.0")
    yield made
    for link in made.links:
        link.close()


_UV = """#!/bin/sh
case "$1" in
venv) exec "$3" -m venv --without-pip "$4" ;;
pip)
    touch {gate}/pid-$$
    while [ -e {gate}/shut ]; do sleep 0.05; done
    cd "$(dirname "$(dirname "$4")")"/lib/python3*/site-packages
    for name in $(grep -v '#' "$OLDPWD/$6"); do "{python}" -m zipfile -e {wheels}/$name-*.whl . || exit 1; done ;;
esac
"""


@pytest.fixture
def gate(host: Host, tmp_path: Path) -> Path:
    """The host has a program `uv` that installs wheels as long as a folder has no file `shut`: this folder."""
    made = new_folder(tmp_path / "gate")
    new_file(host.home / ".local/bin/uv", _UV.format(gate=made, python=sys.executable, wheels=host.wheels), 0o755)
    return made


def says(python: str, code: str) -> str:
    return ran([python, "-c", code], check=True).stdout.strip()


def test_it_is_built_once_and_found_again(host: Host) -> None:
    files = {"requirements.txt": "aaa==1.0\n"}
    assert host.build(files, build=False) == {"python": "", "packages": {}}
    made = host.build(files)
    assert says(made["python"], "import aaa, bbb; print(aaa.VERSION, bbb.VERSION)") == "1.0 2.0"
    assert made["packages"]["aaa"] == "1.0" and made["packages"]["bbb"] == "2.0"
    assert host.build(files, build=False) == made == host.build(files)
    assert len([one for one in host.top.iterdir() if one.is_dir()]) == 1


def test_sixteen_starts_at_once_build_one(host: Host, gate: Path) -> None:
    asked = [host.begin({"requirements.txt": "aaa\nbbb\n"}) for _ in range(16)]
    answers = [one.result(240) for one in asked]
    assert all(one == answers[0] for one in answers)
    assert len([one for one in host.top.iterdir() if one.is_dir()]) == 1
    assert len(list(gate.iterdir())) == 1
    assert says(answers[0]["python"], "import aaa, bbb") == ""


def test_what_it_inherits_is_seen_and_its_torch_stays(host: Host, tmp_path: Path) -> None:
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    for name, version in (("torch", "2.9.0"), ("inner", "1.5"), ("setuptools", "999.0")):
        path = wheel(tmp_path / "own", name, version)
        with zipfile.ZipFile(path) as packed:
            packed.extractall(next((base / "lib").glob("python3*")) / "site-packages")
    wheel(host.wheels, "torch", "2.10.0")
    wheel(host.wheels, "uses", "1.0", "torch>=2.0\nRequires-Dist: setuptools>=999")
    python = str(base / "bin/python")
    made = host.build({"requirements.txt": "uses\n"}, python=python, inherit=True)
    assert made["packages"]["torch"] == "2.9.0" and made["packages"]["inner"] == "1.5"
    where = says(made["python"], "import torch, inner; print(torch.__file__)")
    assert where.startswith(str(base))
    facts = host.link().request("probe", python=made["python"])
    assert facts["interpreters"][0]["path"] == made["python"]


@pytest.mark.parametrize("by", ["pip", "uv"])
def test_a_failed_install_says_why_and_leaves_nothing(host: Host, request: pytest.FixtureRequest, by: str) -> None:
    if by == "uv":
        request.getfixturevalue("gate")
    with pytest.raises(HostError) as error:
        host.build({"requirements.txt": "missing==3\n"})
    assert "requirements.txt cannot be installed" in str(error.value) and "missing==3" in str(error.value)
    assert [one for one in host.top.iterdir() if one.is_dir()] == []


def waiting(gate: Path) -> list[int]:
    """The processes of builds that wait."""
    return list(wait_for(lambda: [int(path.name[4:]) for path in gate.glob("pid-*")], timeout=100))


def guards(home: Path, part: bytes) -> list[int]:
    """The processes that do what comes before a run on a host with this home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[-2:-1] == [part] and os.fsencode(home) in words[-3]:
                found.append(int(path.parent.name))
    return found


def wait_gone(pid: int) -> None:
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), f"the end of process {pid}")


def test_a_build_ends_with_its_viewer(host: Host, gate: Path) -> None:
    before = host.build({"requirements.txt": "bbb\n"})
    for path in gate.iterdir():
        path.unlink()
    (gate / "shut").write_text("")
    host.begin({"requirements.txt": "aaa\n"})
    [pid] = waiting(gate)
    host.links[-1].close()
    wait_gone(pid)
    (gate / "shut").unlink()
    assert host.build({"requirements.txt": "bbb\n"}) == before
    assert says(before["python"], "import bbb; print(bbb.VERSION)") == "2.0"
    assert host.build({"requirements.txt": "aaa\n"})["packages"]["aaa"] == "1.0"


def test_what_a_killed_build_left_running_is_ended_by_the_next(host: Host, gate: Path) -> None:
    (gate / "shut").write_text("")
    asked = host.begin({"requirements.txt": "aaa\n"})
    [pid] = waiting(gate)
    [guard] = guards(host.home, b"environment")
    os.kill(guard, signal.SIGKILL)
    with pytest.raises(HostError, match="the process for environment ended"):
        asked.result(60)
    assert Path(f"/proc/{pid}").exists()
    again = host.begin({"requirements.txt": "aaa\n"})
    wait_gone(pid)
    (gate / "shut").unlink()
    assert again.result(120)["packages"]["aaa"] == "1.0"


def test_a_foreign_folder_in_its_place_is_refused(host: Host) -> None:
    host.top.mkdir(mode=0o777)
    host.top.chmod(0o777)
    with pytest.raises(HostError, match="open to other users"):
        host.build({"requirements.txt": "bbb\n"})


def test_a_python_without_venv_gets_its_cure(host: Host, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" '
        '-c \'import sys; sys.modules["ensurepip"] = None\nexec(sys.argv[2])\' "$@"\n'
    )
    python.chmod(0o755)
    with pytest.raises(HostError, match=r"has no venv with pip.*\n?.*apt install python3\.\d+-venv.*install uv"):
        host.build({"requirements.txt": "bbb\n"}, python=str(python))


def test_uv_and_conda_are_asked_for_where_a_file_needs_them(host: Host) -> None:
    with pytest.raises(HostError, match=r"uv\.lock needs uv, which is not on this host"):
        host.build({"uv.lock": "", "pyproject.toml": ""})
    with pytest.raises(HostError, match="needs conda, mamba or micromamba"):
        host.build({"environment.yml": ""})


def test_old_ones_are_removed_but_none_in_use(host: Host, gate: Path) -> None:
    files = [{"requirements.txt": f"bbb\n# {number}\n"} for number in range(3)]
    made = [host.build(one)["python"] for one in files]
    old = time.time() - 40 * 86400
    for marker in host.top.glob("*.json"):
        os.utime(marker, (old, old))
    for folder in host.top.iterdir():
        if folder.is_dir():
            os.utime(folder, (old, old))
    run = new_folder(host.home / "run/0")
    (run / "spec.json").write_text(json.dumps({"python": made[1]}))
    words = [sys.executable, "-c", "import time; time.sleep(600)", "warden", str(run)]
    os.utime(Path(made[2]).parents[2])  # as the supervisor of a run on another host with this disk does
    with running(words):
        host.build({"requirements.txt": "aaa\n"})
    assert [Path(one).exists() for one in made] == [False, True, True]


# On the viewer


def collected(tmp_path: Path, environment: str, **files: str) -> Any:
    for name, text in files.items():
        new_file(tmp_path / name.replace("__", "/").replace("_", "."), text)
    (tmp_path / "p.yaml").write_text(f"disttui: 1\nhosts: [local]\njob: {{script: x.py, environment: {environment}}}\n")
    return collect_requirements(Viewer(environ={"HOME": str(tmp_path)}), load(tmp_path / "p.yaml"))


def test_a_folder_or_a_file_says_what_to_install(tmp_path: Path) -> None:
    more = {
        "requirements_txt": "-r more/base.txt\n-c pins.txt\naaa\n",
        "more__base_txt": "bbb\n",
        "pins_txt": "bbb==2\n",
    }
    found = collected(tmp_path, ".", **more)
    assert list(found.files) == ["requirements.txt", "more/base.txt", "pins.txt"] and not found.inherit
    found = collected(tmp_path, "{from: requirements.txt, inherit: true}")
    assert found.inherit and found.files["more/base.txt"] == "bbb\n"
    assert list(collected(tmp_path, ".", uv_lock="1", pyproject_toml="2").files) == ["uv.lock", "pyproject.toml"]


@pytest.mark.parametrize("environment", [".", "requirements.txt"])
def test_a_repeated_run_installs_what_its_code_asked_for(tmp_path: Path, environment: str) -> None:
    new_file(tmp_path / "requirements.txt", "-r more.txt\n")
    new_file(tmp_path / "more.txt", "aaa==1\n")
    job = f"{{script: x.py, sync: ., environment: {environment}}}"
    new_file(tmp_path / "x.py", "")
    new_file(tmp_path / "p.yaml", f"disttui: 1\nhosts: [local]\njob: {job}\n")
    profile, viewer = load(tmp_path / "p.yaml"), Viewer(environ={"HOME": str(tmp_path / "home")})
    now = collect_code(profile, viewer.environ)
    assert now
    (tmp_path / "more.txt").write_text("aaa==2\n")
    (tmp_path / "requirements.txt").unlink()
    found = collect_requirements(viewer, profile, replace(now, recorded=True))
    assert found.files == {"requirements.txt": "-r more.txt\n", "more.txt": "aaa==1\n"}
    with pytest.raises(InputError, match="requirements"):
        collect_requirements(viewer, profile, now)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-e .\n", "requirements.txt:1: -e . is a path on this machine"),
        ("aaa\n./x.whl\n", "requirements.txt:2: ./x.whl is a path"),
        ("aaa @ file:///x.whl\n", "is a path on this machine"),
        ("aaa@file:///x.whl\n", "is a path on this machine"),
        ("-r ../outside.txt\n", "the file is outside of"),
        ("-r none.txt\n", "cannot be read: No such file"),
    ],
)
def test_what_hosts_cannot_install_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InputError) as error:
        collected(tmp_path / "in", "requirements.txt", requirements_txt=text)
    assert why in str(error.value)


OFFLINE: Offline = {"tag": "3.11", "machine": "x86_64", "libc": "glibc-2.31", "torch": "", "why": "no route to it"}


def test_modules_beside_requirements_do_not_run_here(tmp_path: Path) -> None:
    """Python imports from the folder in which `python -m` is started."""
    files = {"r.txt": "-c pip.py\n--no-index\nnot-there==1\n", "pip.py": "not_defined==1\n"}
    with pytest.raises(HostError, match="No matching distribution found for not-there"):
        download(files, "box1", OFFLINE, tmp_path, os.environ)


_BUILT = r"""x @ https://e.org/x.tar.gz
x@git+https://e.org/x
https://e.org/x.zip
git+ssh://e.org/x
x/y.tar
x @ https://e.org/x.whl#egg=x.tar.gz
@ https://e.org/x
x==1;'@ https://e.org/x'
x==${A}
'x
--no-binary x
-i https://e.org --no-binary=x
x==1 --no-binary x
--no-bin\
--only-binary :none:
'--no-binary' x
-i x '--no-binary' x
\--no-binary x
-e git+https://e.org/x#egg=x
-r https://e.org/r.txt
-c=https://e.org/c.txt"""
_NOT_BUILT = rf"""aaa

# x @ y
aaa[b,c]>=1.0,<2 ; python_version < '3.12'  # why
aaa==2.1.0+cu121 --hash=sha256:00ff
aaa (>=1)
aaa~=1.0 \
    --hash=sha256:00ff \
a.b_c-d!=1.*
aaa @ https://e.org/aaa-1.0+cu12-cp311-cp311-linux_x86_64.whl
https://e.org/a.whl#sha256={"0" * 64}
-i https://me:${{TOKEN}}@e.org/simple
--extra-index-url https://e.org
--find-links https://e.org/whl/torch_stable.html
-r more.txt
--pre"""


@pytest.mark.parametrize("line", _BUILT.splitlines())
def test_what_pip_might_build_is_not_downloaded_here(tmp_path: Path, line: str) -> None:
    """A source distribution runs its author's code."""
    with pytest.raises(HostError, match=r"This machine downloads only wheels, and for r\.txt: "):
        download({"r.txt": f"aaa\n{line}\n"}, "box1", OFFLINE, tmp_path, os.environ)


def test_an_encoding_in_requirements_hides_no_option(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        download({"r.txt": "# coding: utf-7\nx>=1 +AC0ALQ-no-binary x\n"}, "box1", OFFLINE, tmp_path, os.environ)
    assert "no-binary" in str(caught.value) and "building" not in str(caught.value).lower()


@pytest.mark.parametrize("line", _NOT_BUILT.splitlines())
def test_plain_requirements_may_be_downloaded_here(line: str) -> None:
    assert not wheels._may_build(line)


def test_flaws_of_the_setting_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no requirements found"):
        collected(tmp_path, ".")
    with pytest.raises(InputError, match="pins every package"):
        collected(tmp_path, "{from: uv.lock, inherit: true}", uv_lock="", pyproject_toml="")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no wheels found"):
        collected(tmp_path, "{from: r.txt, wheels: empty}", r_txt="aaa\n")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            "job: {script: x.py, environment: ., wrap: [apptainer, exec, x.sif]}",
            "with wrap, the job uses the interpreter",
        ),
        (
            "job: {script: x.py, environment: .}\ncontainer: {image: x, runtime: podman}",
            "installed outside the container",
        ),
        (
            "job: {script: x.py, setup: [make]}\nslurm: {nodes: 2}\nnum_processes: 1",
            "setup is not supported on the nodes of a Slurm job",
        ),
    ],
)
def test_what_an_environment_does_not_go_with_is_refused(tmp_path: Path, more: str, why: str) -> None:
    (tmp_path / "p.yaml").write_text(f"disttui: 1\nhosts: [node1]\n{more}\n")
    with pytest.raises(ProfileErrors, match=why):
        load(tmp_path / "p.yaml")
