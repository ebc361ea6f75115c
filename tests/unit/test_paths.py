"""Paths made of what hosts say: inside their folder, and no other text becomes one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from disttui.runner.api import pulling
from disttui.runner.api.pulling import pull
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.paths import PathError, expanded, here, inside, typed
from disttui.runner.runs.store import HostStore, held
from disttui.tui.wizard.draft import new_draft, runnable
from tests.command import ran
from tests.files import new_folder
from tests.unit.liar_kit import liar, lied, viewer

ROOT = Path(__file__).parents[2]
LEADING_OUT = (
    "/etc/passwd", "..", ".", "", "a/../../b", "a//b", "a/", "a\0b", "a\nb", "\x1b[2J", "\x9bx", "half\ud800",
    "x" * 256, "é" * 128, "/".join("a" * 40), "a/" * 2000 + "a", "~/x/../..",
)  # fmt: skip


@pytest.mark.parametrize("name", LEADING_OUT)
def test_a_name_that_is_none_becomes_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(PathError) as caught:
        inside(tmp_path, name)
    assert len(caught.value.what) < 400 and "\x1b" not in caught.value.what and caught.value.exit_code == 2


def test_names_stay_in_their_folder(tmp_path: Path) -> None:
    assert inside(tmp_path, "a", "b/c.pt") == tmp_path / "a" / "b" / "c.pt"
    assert inside(tmp_path, "…é 1") == tmp_path / "…é 1"


def test_a_link_is_followed_inside_and_refused_outside(tmp_path: Path) -> None:
    target, out = tmp_path / "target", tmp_path / "out"
    (target / "real").mkdir(parents=True)
    out.mkdir()
    (target / "good").symlink_to("real")
    (target / "bad").symlink_to(out)
    (target / "loop").symlink_to("loop")
    assert inside(target, "good", "x") == target / "good" / "x"
    for name in ("bad", "bad/x", "loop/x"):
        with pytest.raises(PathError, match="broken link" if name == "loop/x" else "leads"):
            inside(target, name)
    home = tmp_path / "home"
    home.symlink_to(target)
    assert inside(home, "real", "x") == home / "real" / "x"


@pytest.mark.parametrize(
    "name", ["../x.log", "/x.log", ".mirror.json", "a/.x", "a/b/c.log", "a\\b\0", "x\n.log", "x" * 300, "", 7, None]
)
def test_a_mirrored_file_has_no_name_but_those_of_a_run(tmp_path: Path, name: object) -> None:
    store = HostStore(tmp_path / "0")
    with pytest.raises(ValueError, match="announced a file"):
        store.announce({"file": 0, "name": name, "generation": 0, "size": 1, "start": 0})


def test_a_link_planted_in_a_mirror_is_not_written_through(tmp_path: Path) -> None:
    out = new_folder(tmp_path / "out")
    store = HostStore(tmp_path / "0")
    (tmp_path / "0" / "attempt-1").symlink_to(out)
    (tmp_path / "0" / "rank-0.log").symlink_to(out / "x")
    for number, name in enumerate(("attempt-1/rank-0.log", "rank-0.log")):
        with pytest.raises(DisttuiError):
            store.announce({"file": number, "name": name, "generation": 0, "size": 5, "start": 0})
            store.write(number, 0, b"hello")
    assert not list(out.iterdir())
    assert held(tmp_path / "0") == {}


def test_a_flood_of_logs_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HostStore(tmp_path / "0")
    store.announce({"file": 0, "name": "rank-0.log", "generation": 0, "size": 1, "start": 0})
    disk = SimpleNamespace(f_blocks=1 << 20, f_frsize=1024, f_bavail=0)
    monkeypatch.setattr("disttui.runner.runs.store.os.fstatvfs", lambda _: disk)
    disk.f_bavail = (1 << 20) // 20 + 2
    store.write(0, 0, bytes(1024))
    with pytest.raises(DisttuiError, match="No space left on device\n  → Free space for the run's logs"):
        store.write(0, 1024, bytes(4096))
    assert held(tmp_path / "0")["rank-0.log"][2] == 1024


EVIL = """
if op == "files":
    yield {"ok": {"files": FILES}}
elif op == "fetch":
    yield pack_data(0, 0, 0, b"evil")
    import hashlib
    yield {"ok": {"size": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}}
"""


def _files(*names: object) -> str:
    files = [{"name": name, "size": 4, "mtime": 1.0} for name in names]
    return EVIL.replace("FILES", repr(files))


def test_pull_writes_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    """Names of files and of hosts lead out of it; what the good host has is there all the same."""
    to = tmp_path / "home" / "to"
    run = lied(
        tmp_path,
        liar(tmp_path, "good", _files("checkpoints/a.pt", ".bashrc")),
        liar(tmp_path, "../../home3", _files("checkpoints/a.pt").replace("1.0", "2.0")),
        liar(tmp_path, "b", _files("checkpoints/b.pt", "../.bashrc")),
        liar(tmp_path, "c", _files("checkpoints/c.pt", "/tmp/x", 7, None, "x" * 5000)),
        liar(tmp_path, "d", _files("checkpoints/linked/x.pt")),
        liar(tmp_path, "e", _files("outputs/e")),
    )
    (to / "checkpoints").mkdir(parents=True)
    (to / "checkpoints" / "linked").symlink_to(tmp_path)
    with pytest.raises(DisttuiError) as caught:
        pull(viewer(), run, to)
    assert caught.value.exit_code == 3
    found = sorted(str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*.pt"))
    apart = "to/..-..-home3/checkpoints/a.pt"  # one folder, whatever its name looks like
    assert found == [apart, *(f"to/checkpoints/{name}.pt" for name in "abc")], found
    assert (to / "outputs" / "e").read_bytes() == b"evil"
    assert not (tmp_path / "x.pt").exists()
    for name in ("good", "b", "c", "d"):
        assert re.search(rf"{re.escape(name)}: \d files? skipped: ", str(caught.value)), caught.value


def test_pull_leaves_out_one_file_for_its_name(tmp_path: Path) -> None:
    """It is named, safe to show; the files after it are copied."""
    run = lied(tmp_path, liar(tmp_path, "n1", _files("checkpoints/a\x1b[31m\n.pt", "checkpoints/b.pt")))
    with pytest.raises(DisttuiError) as caught:
        pull(viewer(), run, tmp_path / "to")
    assert (tmp_path / "to" / "checkpoints" / "b.pt").read_bytes() == b"evil"
    assert r"1 file skipped: " in str(caught.value) and r"checkpoints/a\x1b[31m\n.pt" in str(caught.value)


@pytest.mark.parametrize(
    ("inode", "content", "besides"),
    [(7, "evil", []), (8, "evil", []), (8, "good", ["n2/outputs/x.pt"])],
    ids=["one file, shared", "the same content", "another content"],
)
def test_file_of_two_hosts_is_pulled_once_if_shared_or_equal(
    tmp_path: Path, inode: int, content: str, besides: list[str]
) -> None:
    """Of one name, size and time: checkpoints that hosts write in the same second of a coarse clock."""
    first = _files("outputs/x.pt").replace("'mtime'", "'inode': 7, 'mtime'")
    second = _files("outputs/x.pt").replace("'mtime'", f"'inode': {inode}, 'mtime'").replace("evil", content)
    second = second.replace("yield pack_data", "if not request['offset']: yield pack_data")
    run, to = lied(tmp_path, liar(tmp_path, "n1", first), liar(tmp_path, "n2", second)), tmp_path / "to"
    for _ in range(2):
        pull(viewer(), run, to)
        assert sorted(path.relative_to(to).as_posix() for path in to.rglob("*.pt")) == [*besides, "outputs/x.pt"]
    assert (to / "outputs/x.pt").read_bytes() == b"evil"


def test_a_pull_without_a_host_keeps_the_copy_of_its_file(tmp_path: Path) -> None:
    others = _files("outputs/x.pt").replace("1.0", "2.0").replace("evil", "good")
    newer = others.replace("2.0", "3.0").replace("good", "best")
    to = tmp_path / "to"
    for first, second in ((_files("outputs/x.pt"), others), ("os._exit(0)", others), ("os._exit(0)", newer)):
        pull(viewer(), lied(tmp_path, liar(tmp_path, "n1", first), liar(tmp_path, "n2", second)), to)
        assert (to / "outputs/x.pt").read_bytes() == b"evil"
    assert (to / "n2/outputs/x.pt").read_bytes() == b"best"


def test_half_file_of_one_host_does_not_begin_anothers_file(tmp_path: Path) -> None:
    to = tmp_path / "to"
    run = lied(
        tmp_path, liar(tmp_path, "a", _files("checkpoints/x.pt.part")), liar(tmp_path, "b", _files("checkpoints/x.pt"))
    )
    assert pull(viewer(), run, to).bytes == 8
    assert sorted(path.name for path in to.rglob("*")) == ["checkpoints", "x.pt", "x.pt.part"]
    assert (to / "checkpoints" / "x.pt").read_bytes() == b"evil"


def test_interrupted_file_is_continued_without_leftovers(tmp_path: Path) -> None:
    body = """
    if op == "files":
        yield {"ok": {"files": [{"name": "outputs/x.pt", "size": 4, "mtime": 1.0}]}}
    elif not request["offset"]:
        yield pack_data(0, 0, 0, b"ev")
        os._exit(0)
    else:
        import hashlib
        yield pack_data(0, 0, 2, b"il")
        yield {"ok": {"size": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}}
    """
    run, to = lied(tmp_path, liar(tmp_path, "n1", body)), tmp_path / "to"
    with pytest.raises(DisttuiError, match="n1: the link broke"):
        pull(viewer(), run, to)
    assert pull(viewer(), run, to).bytes == 2
    assert [path.name for path in to.iterdir()] == ["outputs"]
    assert [(path.name, path.read_bytes()) for path in (to / "outputs").iterdir()] == [("x.pt", b"evil")]


def test_conflicting_files_of_a_host_do_not_block_other_hosts(tmp_path: Path) -> None:
    to = tmp_path / "to"
    (to / "outputs/c").mkdir(parents=True)
    run = lied(
        tmp_path,
        liar(tmp_path, "a", _files("outputs/a", "outputs/a/b")),
        liar(tmp_path, "b", _files("outputs/b/c", "outputs/b")),
        liar(tmp_path, "c", _files("outputs/c")),
        liar(tmp_path, "d", _files("outputs/" + "d" * 255)),
    )
    with pytest.raises(DisttuiError) as caught:
        pull(viewer(), run, to)
    assert caught.value.exit_code == 3
    for name, why in (("a/b", "cannot be written: "), ("b", "cannot be written: "), ("c", "exists, and is not")):
        assert re.search(rf"{name[0]}: .*{re.escape(str(to / 'outputs' / name))} {why}", str(caught.value)), name
    assert {"a", "b", "d" * 255} <= {path.name for path in (to / "outputs").iterdir()}


def test_pull_replaces_no_file_but_its_own(tmp_path: Path) -> None:
    """A folder with a program in it may be the target: `--to .`."""
    to, names = tmp_path / "to", ("train.py", "checkpoints/../train.py", "outputs/mine.py", "outputs/theirs.py")
    (to / "outputs").mkdir(parents=True)
    for name in ("train.py", "outputs/mine.py"):
        (to / name).write_text("mine")
    run = lied(tmp_path, liar(tmp_path, "n1", _files(*names)))
    for _ in range(2):
        with pytest.raises(DisttuiError) as caught:
            pull(viewer(), run, to)
        assert "n1: 3 files skipped: 'train.py' is not a checkpoint or output of a run" in str(caught.value)
        assert f"{to}/outputs/mine.py exists, and is not from this run" in str(caught.value)
        assert (to / "outputs/theirs.py").read_bytes() == b"evil"
        (to / "outputs/theirs.py").write_bytes(b"older, as the last pull may have left it")
    assert (to / "train.py").read_text() == (to / "outputs/mine.py").read_text() == "mine"


@pytest.mark.parametrize("first", [None, "outputs/x.pt"], ids=["no file", "no checksum"])
def test_a_silent_host_keeps_no_file_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str | None
) -> None:
    """It answers heartbeats, and sends nothing of a file, or no checksum of one that is here."""
    monkeypatch.setattr(pulling, "REACH", 0.5)
    silent = _files("outputs/x.pt").replace('yield pack_data(0, 0, 0, b"evil")', "time.sleep(3600)")
    silent = silent.replace("'mtime'", "'inode': 8, 'mtime'")
    hosts = [liar(tmp_path, "n0", _files(first))] if first else []
    run = lied(tmp_path, *hosts, liar(tmp_path, "n1", silent), liar(tmp_path, "n2", _files("outputs/y.pt")))
    with pytest.raises(DisttuiError, match=r"n1: no data of outputs/x.pt for \d+ s"):
        pull(viewer(), run, tmp_path / "to")
    assert (tmp_path / "to/outputs/y.pt").read_bytes() == b"evil"


def test_a_file_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    body = """
    if op == "files":
        yield {"ok": {"files": [{"name": "outputs/x", "size": 1 << 50, "mtime": 1.0}]}}
    """
    run = lied(tmp_path, liar(tmp_path, "n1", body), liar(tmp_path, "n2", _files("outputs/y")))
    with pytest.raises(DisttuiError, match=r"n1: outputs/x needs 1048576\.0 GiB, but .* GiB free"):
        pull(viewer(), run, tmp_path / "to")
    assert [path.name for path in (tmp_path / "to/outputs").iterdir()] == ["y"]


def test_pull_of_an_endless_file_ends(tmp_path: Path) -> None:
    body = """
    if op == "files":
        yield {"ok": {"files": [{"name": "outputs/x", "size": 4, "mtime": 1.0},
                                {"name": "outputs/y", "size": 1e300, "mtime": 1.0},
                                {"name": "outputs/z", "size": 1, "mtime": 1e300}]}}
    while op == "fetch":
        yield pack_data(0, 0, 0, bytes(65536)) * 16
    """
    run = lied(tmp_path, liar(tmp_path, "n1", body))
    with pytest.raises(DisttuiError, match="n1: outputs/x was 0 MiB, but 64 MiB arrived without its end"):
        pull(viewer(), run, tmp_path / "to")


def test_text_that_is_joined_to_a_path_is_found(tmp_path: Path) -> None:
    """The rule of the type checker that has every such join go through `inside`."""
    folder = new_folder(tmp_path / "runner" / "runs")
    (folder / "new.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "def f(folder: Path, name: str, share: float) -> None:\n"
        "    folder / 'exit.json'\n"  # 4: written in the code
        "    share / 2.0\n"
        "    folder / name\n"
        "    folder.joinpath('x', name)\n"
        "    folder.with_name(f'{name}~1')\n"
        "    os.path.join('x', name)\n"
        "    folder / 'x' / str(7)\n"
    )
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(tmp_path / "c"),
    ]
    done = ran([*words, str(folder / "new.py")], cwd=ROOT)
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if "unsafe-path" in line]
    assert lines == [6, 7, 8, 9, 10], done.stdout + done.stderr


def test_the_home_of_an_unknown_user_is_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert typed("~/a") == expanded("~/a") == tmp_path / "a"
    assert expanded("~no-such-user/a") == Path("~no-such-user/a")
    with pytest.raises(InputError, match="no such user: no-such-user"):
        typed("~no-such-user/a")


def test_a_deleted_folder_counts_as_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert here() == tmp_path / "gone"
    (tmp_path / "gone").rmdir()
    assert here() == tmp_path
    draft = new_draft().with_hosts(["local"]).with_job("script", "train.py")
    assert runnable(draft) is not None and draft.problems == ()
