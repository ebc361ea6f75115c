"""Run folders and the place of the node program are made, not found: what another user has prepared is not used."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import HostError
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.ship import node_parcel
from disttui.runner.node import folders, parcel
from disttui.runner.node.probe import report
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import listing, runs
from disttui.runner.protocol.requests import Op, StartRequest
from disttui.runner.transport.local import LocalConnection
from tests.files import new_folder
from tests.unit.runs_kit import SLEEP, Make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")

_STRANGER = 65533


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A run_dir for everybody, as /scratch often is."""
    return new_folder(tmp_path / "runs0", 0o1777)


def _give_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, _STRANGER, _STRANGER, follow_symlinks=False)


def _modes(folder: Path) -> set[tuple[str, str]]:
    return {("folder" if path.is_dir() else "file", oct(path.lstat().st_mode)[-3:]) for path in folder.rglob("*")}


def test_a_run_starts_under_a_folder_for_everybody(cluster: Make, shared: Path) -> None:
    run = cluster("print('hello')").start()
    assert run.exit(0)["state"] == "finished"
    assert _modes(shared) == {("folder", "700"), ("file", "600")}


@pytest.mark.root
@pytest.mark.parametrize("level", ["run", "node"])
def test_run_folder_of_another_user_is_refused_by_name(cluster: Make, shared: Path, level: str) -> None:
    run = cluster(SLEEP)
    mine = shared / "bashrc"
    mine.write_text("mine")
    trap = shared / run.run / "0"
    trap.mkdir(parents=True, mode=0o777)
    for name in ("spec.json", "events.jsonl", "supervisor.log", "exit.room", "stop"):
        (trap / name).symlink_to(mine)
    _give_away(trap, *([trap.parent] if level == "run" else []))
    trap.parent.chmod(0o700)
    with pytest.raises(Problem, match=f"belongs to {folders.user_name(_STRANGER)}"):
        run.start()
    assert mine.read_text() == "mine"
    assert run.living() == {}


@pytest.mark.root
def test_a_link_that_another_user_planted_is_not_followed(cluster: Make, shared: Path, tmp_path: Path) -> None:
    run = cluster(SLEEP)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (shared / run.run).symlink_to(elsewhere)
    _give_away(shared / run.run)
    with pytest.raises(Problem, match="belongs to"):
        run.start()
    assert list(elsewhere.iterdir()) == []


def test_a_run_folder_that_is_open_to_others_is_refused(cluster: Make, shared: Path) -> None:
    run = cluster(SLEEP)
    new_folder(shared / run.run, 0o755)
    with pytest.raises(Problem, match="open to other users"):
        run.start()


@pytest.mark.parametrize(
    ("mode", "owner", "says"),
    [(0o777, 0, "every user can write to"), (0o775, 0, "the group .* can write to"), (0o1777, 1, "belongs to")],
    ids=["world-writable", "group-writable", "owned by another"],
)
@pytest.mark.root
def test_a_run_dir_whose_entries_others_can_replace_is_refused(
    cluster: Make, tmp_path: Path, mode: int, owner: int, says: str
) -> None:
    run = cluster(SLEEP)
    base = new_folder(tmp_path / "base")
    os.chown(base, owner and _STRANGER, 12345)
    base.chmod(mode)
    run.changes["run_dir"] = str(base / "runs")
    request: StartRequest = {"spec": run.spec(0), "secrets": run.secrets()}
    with pytest.raises(Problem, match=says) as seen:
        runs.start(request, str(run.zip), None)
    assert "launch.run_dir" in seen.value.cure
    assert list(base.iterdir()) == []


@pytest.mark.root
@pytest.mark.skipif(sys.platform != "linux", reason="lists of this kind are Linux'")
def test_run_dir_opened_by_an_acl_is_refused(tmp_path: Path) -> None:
    """The mode shows such a list as the right of the group, though the group is this user's own."""
    base = tmp_path / "base"
    base.mkdir(0o755)
    base.chmod(0o775)
    assert folders.weakness(str(base)) == ""
    every = 0xFFFFFFFF
    entries = [(1, 7, every), (2, 7, os.getuid()), (2, 7, _STRANGER), (4, 5, every), (0x10, 7, every), (0x20, 5, every)]
    packed = [struct.pack("<HHI", *entry) for entry in sorted(entries)]
    try:
        os.setxattr(base, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))
    except OSError:
        pytest.skip("this file system has no such lists")
    assert "access control list lets others write" in folders.weakness(str(base))
    packed.pop(2)
    os.setxattr(base, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))
    assert folders.weakness(str(base)) == ""


@pytest.mark.root
def test_run_of_another_user_cannot_be_stopped_or_forgotten(cluster: Make, shared: Path) -> None:
    run = cluster(SLEEP)
    trap = new_folder(shared / run.run / "0")
    (trap / "spec.json").write_text("{}")
    (trap / "supervisor.json").write_text("{}")
    _give_away(trap.parent, trap)
    for ask in (runs.status, runs.forget, lambda folder: runs.request_stop(folder, False, "user")):
        with pytest.raises(Problem, match="belongs to"):
            ask(str(trap))
    assert sorted(path.name for path in trap.iterdir()) == ["spec.json", "supervisor.json"]
    shutil.rmtree(trap.parent)


def test_own_links_and_missing_levels_are_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/../disk")
    assert folders.weakness(str(tmp_path / "link" / "a" / "b"), make=True) == ""
    assert _modes(tmp_path / "disk") == {("folder", "700")}
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        folders.weakness(str(tmp_path / "loop" / "x"), make=True)


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o777):
        before = os.umask(umask)
        try:
            assert folders.weakness(str(tmp_path / f"{umask}" / "x"), make=True) == ""
        finally:
            os.umask(before)
    assert _modes(tmp_path) == {("folder", "700")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def _kept(home: Path) -> Path:
    return home / ".cache" / "disttui" / Path(node_parcel().remote_path).name


def _visit() -> dict[str, Any]:
    with closing(Link(LocalConnection("local"), "local", sys.executable)) as link:
        return dict(link.request("probe"))


def _break(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "one bit":
        path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    elif how == "another program":
        other = path.with_name("other")
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("_disttui/node/serve/channel.py", "open('/tmp/pwned', 'w')")
        path.write_bytes(parcel.seal(other.read_bytes(), "0" * 64))
        other.unlink()
    elif how == "writable by others":
        path.chmod(0o666)
    else:
        real = path.with_name("real")
        path.rename(real)
        path.symlink_to(real)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "empty", "one bit", "another program", "writable by others", "a link"])
def test_a_node_program_that_is_not_as_sent_is_sent_again(home: Path, how: str) -> None:
    _visit()
    kept = _kept(home)
    _break(kept, how)
    assert _visit()["hostname"]
    assert parcel.is_whole(str(kept), node_parcel().sha256)
    assert kept.lstat().st_mode & 0o7777 == 0o600
    assert not kept.is_symlink()


def test_whole_programs_are_not_written_again(home: Path) -> None:
    _visit()
    before = _kept(home).stat()
    _visit()
    after = _kept(home).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.root
@pytest.mark.parametrize("whose", ["cache of another", "cache for all", "folder of another", "planted link"])
def test_a_cache_folder_of_others_is_not_used(home: Path, tmp_path: Path, whose: str) -> None:
    cache = new_folder(home / ".cache")
    if whose == "cache of another":
        _give_away(cache)
    elif whose == "cache for all":
        cache.chmod(0o777)
    elif whose == "folder of another":
        (cache / "disttui").mkdir(mode=0o777)
        _give_away(cache / "disttui")
    else:
        trap = tmp_path / "trap"
        trap.mkdir(mode=0o777)
        (cache / "disttui").symlink_to(trap)
        _give_away(cache / "disttui", trap)
    assert _visit()["hostname"]
    assert not list(cache.rglob("*.zip"))
    assert parcel.is_whole(str(tmp_path / "runtime" / "disttui" / _kept(home).name), node_parcel().sha256)


def test_every_unsafe_folder_is_named_with_its_reason(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.chmod(0o777)
    (tmp_path / "runtime").write_text("")
    source = Path(folders.__file__).with_name("loader.py").read_text()
    monkeypatch.setattr("disttui.runner.hosts.ship._LOADER", ("folders.py", "parcel.py", "loader.py"))
    monkeypatch.setattr("disttui.runner.hosts.link.loader_line", lambda: _line(source, str(tmp_path / "file" / "x")))
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="no folder for the node program") as seen:
        _visit()
    assert f"every user can write to {home}" in str(seen.value)


def _line(loader: str, last: str) -> bytes:
    here = Path(folders.__file__).parent
    sources = [(here / name).read_text() for name in ("folders.py", "parcel.py")]
    sources.append(loader.replace('"/tmp/disttui-%d" % os.getuid()', repr(last)))
    return ";".join(f"exec({source!r})" for source in sources).encode() + b"\n"


def test_a_run_goes_on_after_a_cleaner_took_the_node_program(cluster: Make, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    job = """
step(1)
if attempt == 1:
    import shutil
    shutil.rmtree(os.environ["CACHE"])
    while '"e":"step"' not in open(os.path.join(os.environ["DISTTUI_DIR"], "../events.jsonl")).read():
        time.sleep(0.05)
    sys.exit(1)
print("again")
"""
    run = cluster(job, launch={"restarts": 1}, env={"CACHE": str(cache)})
    run.zip = cache / "node.zip"
    data = node_parcel()
    parcel.place(str(run.zip), parcel.seal(data.data, data.sha256))
    run.start()
    assert run.exit(0)["state"] == "finished", str(run.events(0)[6:])
    assert run.path(0, "attempt-2/rank-0.log").read_text() == "again\n"
    assert parcel.is_whole(str(run.zip), data.sha256)


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_job_gets_the_login_umask_and_our_files_stay_private(cluster: Make, umask: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    job = """
folder = os.environ["MADE"]
os.mkdir(folder)
open(os.path.join(folder, "checkpoint.pt"), "w").close()
print("Step 1 | Loss: 0.1")
"""
    run = cluster(job, env={"MADE": str(made)})
    before = os.umask(umask)
    try:
        run.start()
    finally:
        os.umask(before)
    assert run.exit(0)["state"] == "finished"
    assert made.stat().st_mode & 0o777 == 0o777 & ~umask
    assert (made / "checkpoint.pt").stat().st_mode & 0o777 == 0o666 & ~umask
    own = Path(run.folder(0))
    for path in [own, *own.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_plan_says_beforehand_that_a_run_dir_will_be_refused(tmp_path: Path) -> None:
    new_folder(tmp_path / "all", 0o777)
    problems: list[str] = []
    report.disk(str(tmp_path / "all" / "runs"), problems)
    assert problems == [
        f"run_dir {tmp_path}/all/runs will be refused: every user can write to {tmp_path}/all, which is not sticky"
    ]


@pytest.mark.root
def test_folder_of_another_user_is_listed_but_not_opened(shared: Path) -> None:
    trap = new_folder(shared / "t-1" / "0")
    os.mkfifo(trap / "spec.json")
    _give_away(trap.parent, trap)
    [row] = listing.list_runs(str(shared), None)
    assert (row["run"], row["problem"]) == ("t-1", f"{trap.parent} belongs to {folders.user_name(_STRANGER)}")


@pytest.mark.root
@pytest.mark.parametrize("op", ["mirror", "read", "stacks", "files", "fetch", "status", "stop", "forget", "lead"])
def test_nothing_of_a_run_that_another_user_has_made_is_read(shared: Path, op: Op) -> None:
    place = new_folder(shared / "t-1" / "0")
    (place / "spec.json").write_text("{}")
    _give_away(place.parent, place)
    link = Link(LocalConnection("local"), "local", sys.executable)
    request = {"run": "t-1", "node_rank": 0, "run_dir": str(shared), "name": "spec.json", "offset": 0, "length": 100}
    came: list[Any] = []
    try:
        with pytest.raises(HostError, match="belongs to"):
            link.stream(op, came.append, leader={}, have={}, **request).result(60)
    finally:
        link.close()
    assert not came
