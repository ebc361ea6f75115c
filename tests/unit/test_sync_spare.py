"""A host's spare copy of the newest code: which run takes it, and when it is not used."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node import procs
from disttui.runner.node.serve import runs, spare, syncing
from disttui.runner.protocol import tree
from disttui.runner.protocol.names import WHOLE
from tests.unit.test_sync_transfer import Host, host

__all__ = ["host"]


class Project:
    """A folder whose files a host already has, and the host's runs."""

    def __init__(self, top: Path) -> None:
        self.cache, self.runs = str(top / "cache"), top / "runs"
        self.files = {f"{number % 7}/{number}.py": f"# {number}\n" for number in range(300)}
        self.modes: dict[str, str] = {}
        self._request: Any = None

    def start(self, run: str) -> Path:
        """Give a run its copy, and check that it is complete."""
        store = syncing.open_store(self.cache)
        manifest = tree.encode(
            tree.Entry(os.fsencode(path), self.modes.get(path, "f"), len(text), store.add(text.encode()))
            for path, text in self.files.items()
        )
        to = self.runs / run / "code"
        self._request = {"run": run, "run_dir": str(self.runs), "tree": store.add(manifest), "size": len(manifest)}
        self._request["to"] = str(to)
        wanted = dict(self.files)
        assert syncing.sync(self._request, self.cache)["placed"]
        assert {str(path.relative_to(to)): path.read_text() for path in to.rglob("*") if path.is_file()} == wanted
        assert all(any(path.iterdir()) for path in to.rglob("*") if path.is_dir()), "no empty folder"
        assert sorted(path.name for path in to.parent.iterdir()) == ["code"]
        return to

    def prepare(self) -> None:
        syncing.prepare(self._request, self.cache)

    def spares(self) -> list[Path]:
        folder = self.runs / ".spare"
        return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def files(folder: Path) -> set[tuple[int, int]]:
    """What identifies the files in a folder, even if a new one gets the inode of a removed one."""
    return {(at.st_ino, at.st_mtime_ns) for path in folder.rglob("*") if not path.is_dir() for at in [path.lstat()]}


def test_next_run_takes_the_spare_with_its_changes(project: Project) -> None:
    first = project.start("a-1")
    project.prepare()
    [ready] = project.spares()
    assert ready.stat().st_mode & 0o077 == 0 and ready.parent.stat().st_mode & 0o077 == 0
    kept = files(ready)
    assert not kept & files(first)
    project.files["0/0.py"] = "edited"
    project.files["new/one.py"] = "new"
    project.files["1"] = "a file in place of a folder"
    for number in range(1, 300, 7):
        del project.files[f"1/{number}.py"]
    project.modes["2/2.py"] = "x"
    second = project.start("a-2")
    assert len(files(second) & kept) == 300 - 43 - 2, "all that has not changed"
    assert (second / "2/2.py").stat().st_mode & 0o100 and (first / "0/0.py").read_text() == "# 0\n"
    assert project.spares() == []


def test_what_a_job_writes_stays_in_its_copy(project: Project) -> None:
    project.start("a-1")
    for run in ("a-2", "a-3", "a-4"):
        project.prepare()
        (project.start(run) / "0/0.py").write_text("broken by the job")


@pytest.mark.parametrize(
    "change",
    [
        lambda top: (top / "0/0.py").write_text("# 1\n"),
        lambda top: (top / "0/more.py").write_text(""),
        lambda top: (top / "more.py").write_text(""),
        lambda top: (top / "0/0.py").unlink(),
        lambda top: (top / "0/0.py").chmod(0o755),
        lambda top: shutil.rmtree(top / "3"),
        lambda top: os.link(top / "0/0.py", top.parent.parent / "other"),
    ],
    ids=["content", "new", "new on top", "removed", "mode", "folder", "link"],
)
def test_changed_spare_is_not_used(project: Project, change: Callable[[Path], object]) -> None:
    project.start("a-1")
    project.prepare()
    [ready] = project.spares()
    kept = files(ready)
    times = (ready / "0/0.py").stat()
    change(ready)
    if (ready / "0/0.py").exists():
        os.utime(ready / "0/0.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    project.files["5/5.py"] = "edited"
    assert not files(project.start("a-2")) & kept
    assert project.spares() == []


def test_spare_from_before_a_reboot_is_not_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.start("a-1")
    project.prepare()
    kept = files(project.spares()[0])
    monkeypatch.setattr(procs, "boot_id", lambda: "another")
    assert not files(project.start("a-2")) & kept


def test_interrupted_spare_is_not_used_and_replaced(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.start("a-1")

    def killed(store: object, entries: object, top: bytes) -> None:
        Path(os.fsdecode(top), "0").mkdir()
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(spare, "write_tree", killed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(SystemExit):
            project.prepare()
    assert [path.name for path in project.spares()] == ["part"]
    project.start("a-2")
    project.prepare()
    assert [path.name.partition(".")[0] for path in project.spares()] == [project._request["tree"]]


def test_full_disk_leaves_no_spare(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: object, entries: object, top: bytes) -> None:
        Path(os.fsdecode(top), "0").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    project.start("a-1")
    with monkeypatch.context() as patched:
        patched.setattr(spare, "write_tree", full)
        project.prepare()
    assert project.spares() == []
    monkeypatch.setattr(spare, "_FREE", 1 << 60)
    project.prepare()
    assert project.spares() == []


def test_starts_at_the_same_time_share_no_file(project: Project) -> None:
    project.start("a-0")
    project.prepare()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(project.start, ("a-1", "a-2"))
    assert not files(first) & files(second)


def test_a_folder_of_runs_has_one_spare_at_most(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.start("a-1")
    project.prepare()
    others = project.files
    project.files = {path: f"{text}other" for path, text in others.items()}
    project.start("a-2")
    assert len(project.spares()) == 1, "another project has not taken it"
    project.prepare()
    project.prepare()
    assert [path.name.partition(".")[0] for path in project.spares()] == [project._request["tree"]]
    monkeypatch.setattr(spare, "_MOST", 299)
    project.files["one.py"] = "more"
    project.start("a-3")
    project.start("a-4")
    project.prepare()
    assert project.spares() == []


def test_code_from_an_old_spare_is_new(project: Project) -> None:
    project.start(f"a-{0:016x}")
    project.prepare()
    os.utime(project.spares()[0], (1e9, 1e9))
    code = project.start(f"a-{1:016x}")
    project.start(f"a-{2:016x}")
    assert code.exists(), "it is not removed as that of a run that was never started"


def test_spare_that_others_can_write_to_is_not_used(project: Project) -> None:
    project.start("a-1")
    project.prepare()
    kept = files(project.spares()[0])
    (project.runs / ".spare").chmod(0o777)
    assert not files(project.start("a-2")) & kept


def test_small_code_has_no_spare(project: Project) -> None:
    project.files = {"a.py": "1"}
    project.start("a-1")
    project.prepare()
    assert not (project.runs / ".spare").exists()


def test_spare_is_made_when_the_viewer_leaves(host: Host) -> None:
    for number in range(300):
        (host.folder / f"{number}.py").write_text(str(number))
    host.send("a-1")
    host.links[-1].close()
    host.links[-1]._stream._process.wait(30)  # type: ignore[attr-defined]
    [ready] = [path for path in (host.home / "runs/.spare").iterdir() if not path.name.startswith(".")]
    kept = files(ready)
    (host.folder / "7.py").write_text("edited")
    to = host.send("a-2")
    assert (to / "7.py").read_text() == "edited" and len(files(to) & kept) == 299


def test_spare_goes_with_the_last_run(project: Project) -> None:
    first, second = f"a-{'a' * 16}", f"a-{'b' * 16}"
    assert WHOLE.fullmatch(first) and WHOLE.fullmatch(second)
    for run in (first, second):
        project.start(run)
        project.prepare()
        folder = project.runs / run / "0"
        folder.mkdir(mode=0o700)
        (folder / "spec.json").write_text("{}")
        (folder / "exit.json").write_text(json.dumps({"state": "finished"}))
    for run, left in ((first, 1), (second, 0)):
        runs.forget(str(project.runs / run / "0"))
        assert len(project.spares()) == left
    assert list(project.runs.iterdir()) == []
