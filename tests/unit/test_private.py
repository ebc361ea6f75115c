"""What is made on the viewer is for its user alone, whatever the umask says."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner import private
from disttui.runner.profile.load import parse
from disttui.runner.profile.save import save
from disttui.runner.runs.registry import keep, mirror_of
from disttui.runner.runs.store import HostStore
from disttui.runner.transport import known_hosts
from disttui.tui.replay import screen as example
from disttui.tui.startup import crash_note


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _open_to_others(folder: Path, mask: int = 0o077) -> list[str]:
    paths = [path for path in folder.rglob("*") if not path.is_symlink()]
    return [f"{path} {stat.filemode(path.stat().st_mode)}" for path in paths if path.stat().st_mode & mask]


def test_umask_zero_opens_nothing_of_a_run_to_others(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "data" / "share"), "XDG_STATE_HOME": str(tmp_path / "state")}
    profile = parse("disttui: 1\nhosts: [local]\njob: {builtin: bytegpt}\n", "profile", ())
    run = keep(profile, [1], "one-1a2b", environ)
    run.note_seen({"run": run.run})
    with mirror_of(run) as folder:
        store = HostStore(folder / "0")
        store.announce({"file": 0, "name": "attempt-1/rank-0.log", "generation": 0, "size": 5, "start": 0})
        store.close()
    try:
        raise ValueError
    except ValueError:
        crash_note(environ, None)
    example.unpacked({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    known_hosts.append(str(tmp_path / "ssh" / "known_hosts"), "n1", "ssh-ed25519", b"key")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data", "ssh", "state"]
    cache = tmp_path / "cache" / "disttui"
    assert [path for path in _open_to_others(tmp_path) if not path.startswith(f"{cache}/example-")] == []
    assert [path.stat().st_mode & 0o777 for path in (cache, *cache.iterdir())] == [0o700, 0o700]


def test_umask_zero_makes_no_profile_that_all_can_change(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profiles" / "one.yaml"
    save("x: 1\n", path, replace=False)
    assert _open_to_others(tmp_path, 0o002) == []


def test_a_file_that_has_nothing_to_tell_yet_is_not_waited_for() -> None:
    ours, theirs = os.openpty()  # /proc/kmsg is such a file, too
    try:
        with pytest.raises(private.NoRegularFileError):
            private.read(os.ttyname(theirs), 3, devices=True)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    assert private.read(tmp_path / "link", 3)[0] == b"123"
    with pytest.raises(private.NoRegularFileError):
        private.read(tmp_path / "pipe", 3)
    with pytest.raises(IsADirectoryError):
        private.read(tmp_path, 3)
