"""Code trees against hostile trees, hosts and moments: links that lead out, cuts at any byte, damage, full disks."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.carrying import code_files, collect_code, copy_code, recorded_code
from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.answers import read_answer
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve.syncing import place
from disttui.runner.profile.load import load
from disttui.runner.protocol import tree
from disttui.runner.protocol.objects import DamagedError, Store, Writer, write_tree
from disttui.runner.sync import collect as module
from disttui.runner.sync.collect import Wanted
from disttui.runner.sync.patterns import Patterns
from disttui.runner.sync.transfer import TreeParcel, _Sender
from tests.files import new_file, new_folder, tmpfs
from tests.light import light_python
from tests.unit.history_kit import command
from tests.unit.test_sync_collect import Folder, folder, omissions
from tests.unit.test_sync_records import folder as project
from tests.unit.test_sync_records import started
from tests.unit.test_sync_transfer import RUN_DIR, Host, host

__all__ = ["folder", "host", "project"]  # fixtures

OLD = (1e9, 1e9)


def commit(path: Path) -> None:
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=path, check=True)


# What the viewer reads.


def test_links_that_lead_out_by_way_of_other_links_are_left_out(folder: Folder) -> None:
    (folder.path / "p/q").mkdir(parents=True)
    (folder.path / "p/q/up").symlink_to("../..")
    (folder.path / "z").symlink_to("p/q/up/../../etc/passwd")
    found = folder.collect()
    assert [one.path for one in found.entries] == [b"p/q/up"] and "link" in omissions(found)["z"]
    with pytest.raises(ValueError, match="out of the tree"):
        tree.decode(tree.encode([tree.link(b"p/q/up", b"../.."), tree.link(b"z", b"p/q/up/../../etc")]))


@pytest.mark.parametrize("git", [False, True], ids=["plain", "git"])
def test_what_lies_in_too_many_folders_is_left_out(folder: Folder, git: bool) -> None:
    """Whatever has copied a folder into itself, again and again, must not make a copy that nobody can remove."""
    if git:
        folder.git("init", "-q")
    folder.write("train.py")
    deep, depth = os.open(folder.path, os.O_RDONLY), 1500
    for _ in range(depth):
        os.mkdir("d", dir_fd=deep)
        deep, above = os.open("d", os.O_RDONLY, dir_fd=deep), deep
        os.close(above)
    os.close(os.open("x", os.O_CREAT, dir_fd=deep))
    os.close(deep)
    try:
        found = folder.collect(include=("nothing",))
        assert [one.path for one in found.entries] == [b"train.py"]
        assert omissions(found) == {"d/" * depth + "x": "it lies in more than 250 folders"}
    finally:
        subprocess.run(["rm", "-r", folder.path / "d"], check=True)


def test_link_in_place_of_a_folder_carries_none_of_its_target(folder: Folder, tmp_path: Path) -> None:
    folder.write("conf/a")
    folder.write("keep.py")
    commit(folder.path)
    (folder.path / "conf").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/a").write_text("of this machine")
    (folder.path / "conf").symlink_to(tmp_path / "elsewhere")
    found = folder.collect()
    assert [one.path for one in found.entries] == [b"keep.py"]
    assert "a link to outside of the folder" in omissions(found)["conf"]


def test_a_tracked_folder_replaced_by_a_file_is_that_file(folder: Folder) -> None:
    folder.write("a/b.py")
    commit(folder.path)
    (folder.path / "a/b.py").unlink()
    (folder.path / "a").rmdir()
    folder.write("a")
    assert folder.names() == ["a"]


def test_a_submodule_that_is_not_checked_out_is_empty(folder: Folder, tmp_path: Path) -> None:
    inner = new_folder(tmp_path / "inner")
    (inner / "x.py").touch()
    commit(inner)
    folder.write("train.py")
    commit(folder.path)
    folder.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    assert folder.names() == [".gitmodules", "sub/x.py", "train.py"], "checked out"
    folder.git("submodule", "deinit", "-f", "sub")
    assert folder.names() == [".gitmodules", "train.py"]


def test_a_worktree_of_a_repository_is_carried(folder: Folder) -> None:
    for name, text in (("train.py", ""), (".gitignore", "*.log")):
        folder.write(name, text)
    commit(folder.path)
    folder.git("worktree", "add", "-q", "-b", "other", "../other")
    folder.path = folder.path.parent / "other"
    for name in ("new.py", "a.log"):
        folder.write(name)
    assert folder.names() == [".gitignore", "new.py", "train.py"]
    assert module.git_state(folder.path).branch == "other"


def test_a_bare_repository_is_refused(folder: Folder) -> None:
    folder.git("init", "-q", "--bare", ".")
    with pytest.raises(InputError, match="the inside of a git repository") as caught:
        folder.collect()
    assert "checked out" in caught.value.cure


@pytest.mark.root
def test_a_repository_of_another_user_is_named_with_its_cure(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the user's own git may trust every folder
    folder.write("sub/train.py")
    commit(folder.path)
    os.chown(folder.path, 12345, 12345)
    with pytest.raises(InputError, match="dubious ownership") as caught:
        module.collect(Wanted(folder.path / "sub"), folder.store, folder.cache)
    assert caught.value.cure.endswith(f"git config --global --add safe.directory {folder.path}")


def test_a_git_that_is_ten_years_old_answers(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("train.py")
    commit(folder.path)
    (tmp_path / "bin").mkdir()
    refusing = (
        f'#!/bin/sh\ncase $1 in --*) echo "Unknown option: $1" >&2; exit 129;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    new_file(tmp_path / "bin/git", refusing, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert folder.names() == ["train.py"] and module.git_state(folder.path).commit


@pytest.mark.parametrize(
    "said", ["fatal: unsafe repository ('/x' is owned by someone else)", "fatal: detected dubious ownership"]
)
def test_the_error_of_git_is_found_behind_its_warnings(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    folder.git("init", "-q")
    (tmp_path / "bin").mkdir()
    warns = "warning: unable to access '/root/.config/git/attributes': Permission denied"
    new_file(tmp_path / "bin/git", f'#!/bin/sh\necho "{warns}" >&2; echo "{said}" >&2; exit 128\n', 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(InputError) as caught:
        folder.collect()
    assert caught.value.what == f"git ls-files failed: {said}"
    assert caught.value.cure.endswith(f"--add safe.directory {folder.path}")


@pytest.mark.root
@pytest.mark.parametrize("tracked", [False, True])
def test_a_folder_that_git_cannot_read_is_named(tracked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(tempfile.mkdtemp(dir="/tmp"))  # another user can enter it
    try:
        made = Folder(base)
        made.write("sub/train.py")
        commit(made.path)
        made.write("sub/data/x")
        if tracked:
            commit(made.path)
        (made.path / "sub/data").chmod(0)
        for path in (base, *base.rglob("*")):
            os.chown(path, 12345, 12345)
        made.path = made.path / "sub"
        monkeypatch.setenv("HOME", str(base))
        os.setresuid(12345, 12345, 0)
        try:
            if tracked:
                with pytest.raises(InputError, match="data/x: cannot be read: Permission denied"):
                    made.collect()
                assert made.names(exclude=("data/",)) == ["train.py"]
                return
            assert omissions(made.collect()) == {"data/": "cannot be read: Permission denied"}
            assert made.collect(exclude=("data/",)).omitted == ()
        finally:
            os.setresuid(0, 0, 0)
    finally:
        shutil.rmtree(base)


def test_file_that_vanishes_during_collection_is_left_out(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.py")
    folder.write("b.swp").touch()
    real = module._Collector._reason

    def vanishing(self: Any, path: bytes, *rest: Any, **more: Any) -> str:
        if path == b"b.swp":
            (folder.path / "b.swp").unlink()
        return real(self, path, *rest, **more)

    monkeypatch.setattr(module._Collector, "_reason", vanishing)
    assert folder.names() == ["a.py"]


def test_folder_that_vanishes_during_collection_is_left_out(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.py")
    (folder.path / "tmp").mkdir()
    real = os.scandir

    def vanishing(path: Any) -> Any:
        if os.fsencode(path).endswith(b"/tmp/"):
            (folder.path / "tmp").rmdir()
        return real(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert folder.names() == ["a.py"]


def test_a_file_changed_while_it_is_read_is_its_new_version(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = folder.write("a.bin", b"1" * 3_000_000), Writer.write
    versions = [b"2" * 3_000_000]

    def changing(self: Writer, data: bytes) -> None:
        real(self, data)
        if versions:
            path.write_bytes(versions.pop())

    monkeypatch.setattr(Writer, "write", changing)
    [entry] = folder.collect(most=10**7).entries
    assert folder.store.read(entry.value, 10**7) == b"2" * 3_000_000


@pytest.mark.root
def test_a_device_is_left_out_by_name(folder: Folder) -> None:
    os.mknod(folder.path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    assert omissions(folder.collect()) == {"null": "not a file (a device)"}


def test_a_file_of_5_gb_is_carried_and_checked(host: Host) -> None:
    with (host.folder / "data.bin").open("wb") as sparse:
        sparse.truncate(5 << 30)
    host.most = 5 << 30
    try:
        assert (host.send("a-1") / "data.bin").stat().st_size == 5 << 30, "its content was checked against its hash"
    finally:  # pytest keeps what is left
        shutil.rmtree(host.home)
        shutil.rmtree(host.store.folder)


def test_200_000_files_are_carried(host: Host) -> None:
    for part in range(200):
        (host.folder / str(part)).mkdir()
        for number in range(1000):
            os.close(os.open(host.folder / f"{part}/{number}", os.O_CREAT | os.O_WRONLY))
    to = host.send("a-1")
    assert sum(len(files) for _, _, files in os.walk(to)) == 200_000


def test_a_file_that_grows_while_it_is_read_has_an_end(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, pieces = folder.write("a.log"), Writer.write, [0]

    def growing(self: Writer, data: bytes) -> None:
        real(self, data)
        pieces[0] += 1
        assert pieces[0] < 1000, "it is read without an end"
        with path.open("ab") as file:
            file.write(b"x" * 10)

    monkeypatch.setattr(Writer, "write", growing)
    with pytest.raises(InputError, match="changed while being read"):
        folder.collect()


def test_an_error_ends_the_reading_of_other_files(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        folder.write(f"{number}.py")
    read: list[bytes] = []

    def failing(self: Any, full: bytes) -> None:
        read.append(full)
        raise PermissionError(13, "Permission denied", full)

    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(module._Collector, "_read", failing)
    with pytest.raises(InputError, match=r"\.py: cannot be read: Permission denied"):
        folder.collect()
    assert len(read) <= 4, "one for each thread"


def test_an_unreadable_file_is_named_as_text(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a\x1b.py")
    real = os.open

    def refused(path: Any, *rest: Any) -> int:
        if isinstance(path, bytes) and path.endswith(b".py"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(InputError, match="Permission denied") as caught:
        folder.collect()
    assert caught.value.place.startswith(f"{folder.path}/a") and "\x1b" not in caught.value.place


def test_excluded_files_do_not_count(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_FILES", 3)
    for number in range(9):
        folder.write(f"data/{number}")
    folder.write("a.py")
    commit(folder.path)
    assert folder.names(exclude=("data/",)) == ["a.py"]
    monkeypatch.setattr(module._Collector, "_entry", None)  # none is read
    with pytest.raises(InputError, match="10 files; at most 3 can be sent") as caught:
        folder.collect()
    assert caught.value.cure.startswith("Exclude data/, which has 9, in .disttuiignore")


@pytest.mark.torch
def test_script_in_a_hostile_folder_runs_and_names_omissions(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], sorted(os.listdir()))\n")
    for name in ("a\x1b]0;owned\x07b", "two\nlines", ".env"):
        (work / name).write_text("x")
    (work / "id_rsa").write_text("x")
    (work / "out").symlink_to("/etc/passwd")
    (work / "loop").symlink_to(".")
    os.mkfifo(work / "pipe")
    with (work / "sub/data.bin").open("wb") as sparse:
        sparse.truncate(5 << 30)
    done = command(
        tmp_path,
        "run",
        str(work / "train.py"),
        "--hosts",
        "local",
        "--set",
        "num_processes=1",
        "--set",
        f"python={light_python(tmp_path / 'light')}",
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition("not sent: ")[2] for line in done.stderr.splitlines() if "not sent: " in line)
    assert said == [
        ".env (1B): looks like a secret", "id_rsa (1B): looks like a secret",
        "out: a link to outside of the folder, to /etc/passwd", "pipe: not a file (a named pipe)",
        "sub/data.bin (5.4GB): larger than job.sync.max",
    ]  # fmt: skip
    assert r"'a\x1b]0;owned\x07b', 'loop', 'train.py', 'two\nlines']" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**/x", "x", True), ("**/x", "a/b/x", True), ("a/**/b", "a/b", True), ("a/**/b", "a/c/d/b", True),
        ("a?b", "a/b", False), ("a[!c]b", "a/b", False), ("a?b", "axb", True), ("a[!c]b", "axb", True),
        ("data/**", "data/x/y", True), ("a**b", "a/b", False), ("*.bin", "x/y.bin", True),
    ],
)  # fmt: skip
def test_patterns_are_those_of_gitignore(pattern: str, path: str, matches: bool, tmp_path: Path) -> None:
    assert (Patterns([pattern]).matching_any_part(path) is not None) == matches
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text(f"{pattern}\n")
    ignored = subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=tmp_path, check=False).returncode
    assert matches == (ignored == 0), "as git itself says"


def test_a_pattern_may_start_with_the_folder_itself() -> None:
    assert Patterns(["./data/"]).matching_any_part("data/x") and not Patterns(["./data/"]).matching_any_part("a/data/x")


@pytest.mark.root
def test_a_repository_may_span_several_disks(folder: Folder) -> None:
    folder.write(".gitignore", "*.log\n")
    commit(folder.path)
    with tmpfs(folder.path / "disk") as other:
        for name in ("disk/train.py", "disk/a.log"):
            folder.write(name)
        found = module.collect(Wanted(other), folder.store, folder.cache)
        assert [one.path for one in found.entries] == [b"train.py"] and module.git_state(other).commit


@pytest.mark.root
def test_a_full_disk_of_the_store_is_not_blamed_on_the_folder(folder: Folder) -> None:
    with tmpfs(Path(folder.store.folder), "size=1m,mode=0700") as store:
        folder.write("big.bin", os.urandom(2 << 20))
        with pytest.raises(InputError, match="No space left") as caught:
            module.collect(Wanted(folder.path), Store(str(store)), folder.cache)
        assert caught.value.place == str(store)


# What the viewer keeps.


def test_the_store_of_the_viewer_stays_below_its_limit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = project.parent / "cache/disttui/objects"
    collect_code(load(project / "mine.yaml"))
    old = Store(str(store)).add(b"x" * 10_000)
    os.utime(store / old[:2] / old[2:], OLD)
    (store / "parts/new.0123").write_bytes(b"left by a viewer that was killed")
    os.utime(store / "parts/new.0123", OLD)
    os.utime(store / "counted", OLD)
    monkeypatch.setattr(Store.prune, "__defaults__", ((), 5000))
    (project / "train.py").write_text("print(2)\n")
    code = collect_code(load(project / "mine.yaml"))
    assert not (store / old[:2] / old[2:]).exists() and not (store / "parts/new.0123").exists()
    assert code and all(Store(str(store)).has(*one) for one in tree.objects(tree.decode(code.manifest)).items())


def test_damaged_object_of_the_viewer_is_read_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", -60.0)
    (host.folder / "a.py").write_bytes(b"good")
    found = module.collect(Wanted(host.folder), host.store, host.tmp_path / "cache")
    name = found.entries[0].value
    Path(host.store.folder, name[:2], name[2:]).write_bytes(b"evil")
    with pytest.raises((HostError, InputError)):
        host.send("a-1")
    assert (host.send("a-2") / "a.py").read_bytes() == b"good"


def test_a_record_of_code_that_was_cut_is_not_run_again(project: Path) -> None:
    (project / "zeta.py").touch()
    known = started(project / "mine.yaml", "mine-1")
    manifest = known.folder / "code.tree"
    manifest.write_bytes(manifest.read_bytes().rpartition(b"\0")[0])  # at an entry's end
    with pytest.raises(InputError, match="not recorded"):
        recorded_code(known)


def test_a_copy_has_all_names_that_were_recorded(project: Path, tmp_path: Path) -> None:
    deep = new_folder(project / "/".join(["d"] * 40))
    (deep / "x.py").touch()
    for name in (b"two\nlines", b"\xff\xfe"):
        (project / os.fsdecode(name)).touch()
    known = started(project / "mine.yaml", "mine-1")
    to = tmp_path / "copy"
    assert copy_code(known, to) == len(code_files(known)) == 5
    assert {b"two\nlines", b"\xff\xfe"} < {os.fsencode(path.name) for path in to.iterdir()}


def test_a_copy_that_fails_leaves_nothing(project: Path, tmp_path: Path) -> None:
    known = started(project / "mine.yaml", "mine-1")
    (name,) = [sha256 for path, _, sha256 in code_files(known) if path == "train.py"]
    damaged = project.parent / "cache/disttui/objects" / name[:2] / name[2:]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    with pytest.raises(InputError, match="damaged"):
        copy_code(known, tmp_path / "copy")
    assert not (tmp_path / "copy").exists() and not list(tmp_path.glob(".code-*"))


# What hosts send and keep.


def test_repeated_claims_of_missing_objects_cost_little(tmp_path: Path) -> None:
    entries = [tree.Entry(b"%04d" % number, "f", 1, f"{number:064x}") for number in range(1000)]
    parcel = TreeParcel("0" * 64, tree.encode(entries), Store(str(tmp_path)))
    answer = {"store": "x", "manifest": True, "missing": [[0, 1000]] * 5000, "begun": {}, "placed": False}
    sender = _Sender(parcel, 0, None, {}, None, None)  # type: ignore[arg-type]
    try:
        assert len(sender._lacking(read_answer("sync", answer))) <= 1000
    except (HostError, ValueError):
        pass


@pytest.mark.parametrize("system", ["clones", "clones a part", "clones nothing", "has no such call"])
def test_a_copy_is_whole_however_the_disk_clones(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloned: list[int] = []

    def clone(source: int, to: int, size: int) -> int:
        if system == "clones nothing" or (system == "clones a part" and cloned):
            raise OSError(errno.EXDEV, "another disk")
        data = os.read(source, size if system == "clones" else 70_000)
        cloned.append(os.write(to, data))
        return cloned[-1]

    if system == "has no such call":
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", clone)
    text = os.urandom(300_000)
    store, top = Store(str(tmp_path / "store")), tmp_path / "copy"
    name = store.add(text)
    top.mkdir()
    write_tree(store, [tree.Entry(b"a", "f", len(text), name)], os.fsencode(top))
    assert (top / "a").read_bytes() == text
    assert cloned == {"clones": [300_000], "clones a part": [70_000]}.get(system, [])

    (tmp_path / "store" / name[:2] / name[2:]).write_bytes(text[:-1] + bytes([text[-1] ^ 1]))
    with pytest.raises(DamagedError):
        write_tree(store, [tree.Entry(b"b", "f", len(text), name)], os.fsencode(top))
    assert not store.has(name, len(text)), "a damaged object is removed"


def test_folders_beside_runs_are_not_removed(host: Host) -> None:
    (host.folder / "a.py").touch()
    runs = host.home / "runs"
    runs.mkdir(0o700)
    for name, more in (("thesis", "thesis.tex"), ("thesis-0123456789abcdef", "notes"), ("my project", "code/x.py")):
        (runs / name / "code").mkdir(parents=True)
        (runs / name / more).touch()
        os.utime(runs / name / "code", OLD)
    host.send("a-0123456789abcdef")
    assert sorted(path.name for path in runs.iterdir() if not path.name.startswith("a-")) == [
        "my project", "thesis", "thesis-0123456789abcdef",
    ]  # fmt: skip
    assert (runs / "thesis/thesis.tex").exists() and (runs / "thesis-0123456789abcdef/notes").exists()


def test_what_a_killed_host_left_of_a_copy_is_removed(host: Host) -> None:
    (host.folder / "a.py").touch()
    left = host.home / "runs/b-0123456789abcdef"
    (left / "code.claim").mkdir(parents=True, mode=0o700)
    (left / "code.0123456789abcdef.part").mkdir()
    (left / "code.0123456789abcdef.part/x").touch()
    for path in left.iterdir():
        os.utime(path, OLD)
    host.send("a-0123456789abcdef")
    assert not left.exists()


def test_forget_removes_no_other_folder_that_the_spec_names(host: Host) -> None:
    other = new_folder(host.home / "Documents")
    node = host.home / "runs/a-1/0"
    node.mkdir(0o700, parents=True)
    (node.parent).chmod(0o700)
    (node / "spec.json").write_text(f'{{"run": "Documents", "tree": "{"0" * 64}", "workdir": "{other}"}}')
    (node / "exit.json").write_text('{"state": "finished"}')
    host.open().request("forget", run="a-1", run_dir=RUN_DIR, node_rank=0)
    assert other.exists() and not node.exists()


def test_a_name_that_a_disk_takes_for_that_of_a_link_is_refused(tmp_path: Path) -> None:
    """As one without upper and lower case takes `LIB`, a link, for `lib`, a folder."""
    store = Store(str(tmp_path / "objects"))
    name = store.add(b"x")
    (tmp_path / "runs").mkdir(0o700)
    entries = [tree.link(b"lib", b".."), tree.Entry(b"lib/evil", "f", 1, name)]
    with pytest.raises(Problem, match="clashes with another name"):
        place(store, entries, str(tmp_path / "runs/code"))
    assert not (tmp_path / "runs/evil").exists() and list((tmp_path / "runs").iterdir()) == []


@pytest.mark.root
def test_full_disk_during_a_copy_leaves_no_cut_copy_of_a_run(host: Host) -> None:
    for name in ("a.bin", "b.bin"):
        (host.folder / name).write_bytes(os.urandom(600_000))
    with tmpfs(host.home / "runs", "size=1m,mode=0700") as runs:
        with pytest.raises(HostError, match="No space left"):
            host.send("a-1")
        assert list(runs.glob("*/*")) == []


def test_a_path_that_is_too_long_for_a_host_is_named_as_text(host: Host) -> None:
    deep = new_folder(host.folder / "/".join(["d" * 250] * 14))
    (deep / "x.py").touch()
    with pytest.raises(HostError, match="too long") as caught:
        host.send("a-1", to=f"{host.home}/{'e' * 250}/{'e' * 250}/{'e' * 250}/a-1")
    assert "b'" not in str(caught.value)


@pytest.mark.parametrize(
    "line", [b"f 007 %s a", b"l 4 62 a", b"l 1  62 a", b"l 1 6B a", b"l 1 6b\n a"],
    ids=["zeros", "size", "space", "case", "line"],
)  # fmt: skip
def test_a_manifest_has_one_form(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        tree.decode(b"disttui tree 1\0" + line.replace(b"%s", b"0" * 64))
