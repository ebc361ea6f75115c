"""What of a folder is carried to hosts: its manifest, its omissions, and its content in the store."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import InputError
from disttui.runner.protocol import tree
from disttui.runner.protocol.objects import DamagedError, Store
from disttui.runner.protocol.tree import Entry
from disttui.runner.sync import collect as module
from disttui.runner.sync.collect import Collected, Wanted, collect, git_state
from tests.counting import counted
from tests.files import new_file

KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n"


class Folder:
    """A folder with files, and the user's store and cache beside it."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "code"
        self.path.mkdir()
        self.store = Store(str(tmp_path / "objects"))
        self.cache = tmp_path / "cache"

    def write(self, name: str, content: bytes | str = b"x\n", *, settled: bool = False) -> Path:
        return new_file(self.path / name, content.encode() if isinstance(content, str) else content)

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=self.path, check=True)

    def collect(self, exclude: tuple[str, ...] = (), include: tuple[str, ...] = (), most: int = 1000) -> Collected:
        return collect(Wanted(self.path, exclude, include, most), self.store, self.cache)

    def names(self, exclude: tuple[str, ...] = (), include: tuple[str, ...] = (), most: int = 1000) -> list[str]:
        return [os.fsdecode(one.path) for one in self.collect(exclude, include, most).entries]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def omissions(found: Collected) -> dict[str, str]:
    return {one.path: one.why for one in found.omitted}


def test_a_manifest_reads_back() -> None:
    entries = [Entry(b"b\n\xff", "x", 3, "0" * 64), tree.link(b"a/l", b"../b"), Entry(b"a/f", "f", 0, "1" * 64)]
    data = tree.encode(entries)
    assert tree.decode(data) == tuple(sorted(entries))
    assert tree.encode(reversed(entries)) == data, "the order does not matter"
    assert tree.objects(entries) == {"0" * 64: 3, "1" * 64: 0}
    assert tree.decode(tree.encode([])) == ()


@pytest.mark.parametrize(
    "line",
    [
        b"f 1 %s /a", b"f 1 %s ../a", b"f 1 %s a/../b", b"f 1 %s a//b", b"f 1 %s ", b"f -1 %s a", b"d 1 %s a",
        b"l 1 2f61 a", b"l 5 2e2e2f2e2e a", b"f 1 zz a", b"l 1 zz a", b"f 1 %s " + b"a" * 256, b"junk",
    ],
)  # fmt: skip
def test_a_malformed_manifest_is_refused(line: bytes) -> None:
    data = b"disttui tree 1\0" + line.replace(b"%s", b"0" * 64)
    with pytest.raises(ValueError, match=r"."):
        tree.decode(data)


def test_a_file_below_a_file_is_refused() -> None:
    above = tree.encode([Entry(b"a", "f", 0, "0" * 64), Entry(b"a.b", "f", 0, "0" * 64), tree.link(b"a/b", b"c")])
    with pytest.raises(ValueError, match="below a file"):
        tree.decode(above)
    twice = b"\0".join([b"disttui tree 1", b"f 0 %s a" % (b"0" * 64), b"f 0 %s a" % (b"0" * 64)])
    with pytest.raises(ValueError, match="order"):
        tree.decode(twice)


def test_git_decides_which_files_belong(folder: Folder) -> None:
    folder.git("init", "-q")
    folder.write(".gitignore", "data/\n*.log\n")
    folder.write("train.py")
    folder.write("lib/model.py")
    folder.write("data/big.bin")
    folder.write("a.log")
    folder.git("add", "train.py")
    folder.write("gone.py")
    folder.git("add", "gone.py")
    (folder.path / "gone.py").unlink()
    assert folder.names() == [".gitignore", "lib/model.py", "train.py"]
    assert folder.names(exclude=("lib/",)) == [".gitignore", "train.py"]


def test_what_git_ignores_is_named_and_may_be_included(folder: Folder) -> None:
    folder.git("init", "-q")
    folder.write(".gitignore", "data/\n*.log\n__pycache__/\n/venv/\n")
    for name in ("train.py", "data/train.bin", "data/raw/x.txt", "a.log", "__pycache__/a.pyc", "venv/pyvenv.cfg"):
        folder.write(name)
    (folder.path / "data/link").symlink_to("train.bin")
    assert omissions(folder.collect()) == {"data/": "ignored by git", "a.log": "ignored by git"}
    [line] = module.omission_lines(folder.collect().omitted)
    assert line == "ignored by git, but job.sync.include can name it: a.log (2B), data/"
    assert folder.names(include=("data/",)) == [
        ".gitignore", "data/link", "data/raw/x.txt", "data/train.bin", "train.py"
    ]  # fmt: skip
    found = folder.collect(include=("*.bin", "*.log"))
    assert [os.fsdecode(one.path) for one in found.entries] == [".gitignore", "a.log", "data/train.bin", "train.py"]
    assert not found.omitted


def test_folder_ignored_by_git_is_carried_as_one_without_git(folder: Folder) -> None:
    folder.git("init", "-q")
    folder.write(".gitignore", "mine/\n")
    folder.write("mine/train.py")
    folder.path = folder.path / "mine"
    found = folder.collect()
    assert [one.path for one in found.entries] == [b"train.py"] and not found.omitted


def test_leftovers_that_git_does_not_ignore_are_left_out(folder: Folder) -> None:
    folder.git("init", "-q")
    for name in ("train.py", "checkpoints/a", "env/pyvenv.cfg", "env/x.py", "lib/__pycache__/a.pyc", "venv/mine.py"):
        folder.write(name)
    folder.write("node_modules/tracked.js")
    folder.git("add", "node_modules")
    found = folder.collect()
    assert [os.fsdecode(one.path) for one in found.entries] == [
        "checkpoints/a", "node_modules/tracked.js", "train.py", "venv/mine.py"
    ]  # fmt: skip
    assert omissions(found) == {
        "env/": "left out by default (a virtual environment)",
        "lib/__pycache__/": "left out by default (__pycache__/)",
    }
    assert "env/x.py" in folder.names(include=("env/",))


def test_a_repository_inside_is_carried_by_its_own_rules(folder: Folder) -> None:
    folder.git("init", "-q")
    folder.write("train.py")
    folder.write("inner/.gitignore", "x\n")
    folder.write("inner/x")
    folder.write("inner/y")
    subprocess.run(["git", "init", "-q"], cwd=folder.path / "inner", check=True)
    assert folder.names() == ["inner/.gitignore", "inner/y", "train.py"]


def test_defaults_apply_without_git(folder: Folder) -> None:
    for name in ("a.py", "__pycache__/a.pyc", "node_modules/x/y", "wandb/z", "lib/b.py", "m.ckpt"):
        folder.write(name)
    folder.write("my-venv/pyvenv.cfg")
    folder.write(".disttuiignore", "# comment\n\n/lib/*.tmp\nsecret-notes\n")
    folder.write("lib/c.tmp")
    folder.write("deep/secret-notes/a")
    assert folder.names() == [".disttuiignore", "a.py", "lib/b.py"]
    found = omissions(folder.collect())
    assert found["wandb/"] == "left out by default (wandb/)" and "virtual environment" in found["my-venv/"]
    assert found["deep/secret-notes/"] == "excluded by secret-notes" and found["lib/c.tmp"] == "excluded by /lib/*.tmp"
    assert "wandb/z" in folder.names(include=("wandb/",))


def test_files_of_a_folder_that_is_left_out_may_be_included(folder: Folder) -> None:
    for name in ("a.py", "checkpoints/last.ckpt", "checkpoints/1.ckpt", "data/x/small.csv", "data/big.bin", "wandb/z"):
        folder.write(name)
    include = ("checkpoints/last.ckpt", "small.csv")
    assert folder.names(("data/",), include) == ["a.py", "checkpoints/last.ckpt", "data/x/small.csv"]
    assert omissions(folder.collect(("data/",), include)) == {"wandb/": "left out by default (wandb/)"}


def test_an_empty_folder_is_named(folder: Folder) -> None:
    folder.write("train.py")
    (folder.path / "out/logs").mkdir(parents=True)
    assert omissions(folder.collect()) == {"out/logs/": "an empty folder"}


def test_what_git_does_not_list_is_named(folder: Folder) -> None:
    folder.write("a/b/train.py")
    folder.git("init", "-q")
    for name in ("a/out", "left"):
        (folder.path / name).mkdir()
    os.mkfifo(folder.path / "a/pipe")
    expected = {"a/out/": "an empty folder", "a/pipe": "not a file (a named pipe)"}
    assert omissions(folder.collect(exclude=("left/",))) == expected


@pytest.mark.parametrize(
    "name",
    [
        "prod.env", ".envrc", ".pypirc", ".git-credentials", ".aws/credentials", "credentials.json", "secrets.toml",
        "client_secret_1.json", "_netrc.p12", ".netrc", "_netrc", "application_default_credentials.json",
        ".kaggle/kaggle.json", ".s3cfg", "rclone.conf", "ID_RSA", "Server.PFX",
    ],
)  # fmt: skip
def test_names_of_secrets(folder: Folder, name: str) -> None:
    folder.write(name)
    assert omissions(folder.collect()) == {name: "looks like a secret"}


def test_private_keys_are_found_but_code_about_keys_is_carried(folder: Folder) -> None:
    folder.write("chain.pem", b"-----BEGIN CERTIFICATE-----\n" + b"x" * 9000 + KEY)
    folder.write("account.json", b'{"private_key": "-----BEGIN PRIVATE KEY-----\\nMII"}')
    folder.write("check.py", "if text.startswith('-----BEGIN PRIVATE KEY-----'):\n")
    found = folder.collect(most=10_000)
    assert [one.path for one in found.entries] == [b"check.py"]
    assert omissions(found) == dict.fromkeys(("chain.pem", "account.json"), "contains a private key")


def test_secrets_are_left_out_and_named(folder: Folder) -> None:
    for name in (".env", ".env.local", "id_rsa", ".env.example"):
        folder.write(name)
    folder.write("keys/deploy", KEY)
    found = folder.collect()
    assert [os.fsdecode(one.path) for one in found.entries] == [".env.example"]
    assert {one.path for one in found.omitted if one.secret} == {".env", ".env.local", "id_rsa", "keys/deploy"}
    assert folder.names(include=(".env", "keys/")) == [".env", ".env.example", "keys/deploy"]
    assert module.omission_lines(found.omitted)[0].endswith(("looks like a secret", "contains a private key"))


def test_large_and_special_files_are_left_out_with_their_size(folder: Folder, tmp_path: Path) -> None:
    folder.write("big", b"x" * 2000)
    os.mkfifo(folder.path / "pipe")
    (folder.path / "out").symlink_to("/etc/passwd")
    (folder.path / "up").symlink_to("../x")
    folder.write("a/file")
    (folder.path / "a/in").symlink_to("../big")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(folder.path)  # a socket's path must be short
    try:
        listener.bind("sock")
    finally:
        os.chdir(here)
        listener.close()
    found = folder.collect()
    assert [(os.fsdecode(one.path), one.kind) for one in found.entries] == [("a/file", "f"), ("a/in", "l")]
    assert omissions(found) == {
        "big": "larger than job.sync.max", "pipe": "not a file (a named pipe)", "sock": "not a file (a socket)",
        "out": "a link to outside of the folder, to /etc/passwd", "up": "a link to outside of the folder, to ../x",
    }  # fmt: skip
    assert next(one.size for one in found.omitted if one.path == "big") == 2000
    assert "big" in folder.names(include=("big",))


def test_strange_names_and_modes_are_carried(folder: Folder) -> None:
    folder.write("run.sh").chmod(0o755)
    folder.write("two\nlines")
    folder.write(os.fsdecode(b"\xff\xfe"))
    found = folder.collect()
    assert {one.path: one.kind for one in found.entries} == {b"run.sh": "x", b"two\nlines": "f", b"\xff\xfe": "f"}
    assert tree.decode(found.manifest) == found.entries
    assert folder.collect().sha256 == found.sha256


def test_an_edit_changes_one_object(folder: Folder) -> None:
    for number in range(20):
        folder.write(f"{number}.py", str(number))
    before = folder.collect()
    folder.write("7.py", "edited")
    after = folder.collect()
    assert len({one.value for one in after.entries} - {one.value for one in before.entries}) == 1
    new = next(one for one in after.entries if one.path == b"7.py")
    assert folder.store.read(new.value, 100) == b"edited"


def test_a_settled_file_is_not_read_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", -3600.0)
    folder.write("a.py")
    folder.collect()
    with monkeypatch.context() as patched:
        patched.setattr(module._Collector, "_read", lambda *_: pytest.fail("read again"))
        assert folder.names() == ["a.py"]
    content = folder.collect().entries[0].value
    (Path(folder.store.folder) / content[:2] / content[2:]).unlink()
    assert folder.collect().entries[0].value == content and folder.store.has(content, 2), "the store had lost it"


def test_a_recent_file_is_read_again(folder: Folder) -> None:
    path = folder.write("a.py", b"1")
    first = folder.collect()
    seen = path.stat()
    path.write_bytes(b"2")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert folder.collect().sha256 != first.sha256


def test_a_file_that_keeps_changing_is_an_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.write("a.log", b"1")
    real, grown = os.fstat, [0]

    def growing(descriptor: int) -> os.stat_result:
        grown[0] += 1
        with path.open("ab") as file:
            file.write(b"1")
        return real(descriptor)

    monkeypatch.setattr("disttui.runner.sync.collect.os.fstat", growing)
    monkeypatch.setattr(module, "_TRIES", 2)
    with pytest.raises(InputError, match=r"a\.log: this file changed while being read"):
        folder.collect()


def test_home_and_root_are_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.path))
    with pytest.raises(InputError, match="whole home folder"):
        folder.collect()
    monkeypatch.setenv("HOME", str(folder.path / "a"))
    with pytest.raises(InputError, match="whole disk"):
        folder.collect()
    with pytest.raises(InputError, match="cannot be read"):
        collect(Wanted(folder.path / "none"), folder.store, folder.cache)


def test_the_state_of_git_has_commit_branch_and_changes(folder: Folder) -> None:
    assert git_state(folder.path) == module.GitState()
    folder.git("init", "-q", "-b", "work")
    folder.write("a.py", "one\n")
    folder.git("add", ".")
    folder.git("commit", "-q", "-m", "x")
    folder.write("a.py", "two\n")
    folder.write("new.py")
    found = git_state(folder.path)
    assert len(found.commit) == 40 and found.branch == "work" and found.untracked == ("new.py",)
    assert "+two" in found.diff and not found.cut


def test_the_state_of_git_is_that_of_the_folder_itself(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("sub/deep/a.py")
    folder.git("init", "-q")
    folder.git("add", ".")
    folder.git("commit", "-q", "-m", "x")
    (tmp_path / "link").symlink_to(folder.path / "sub")
    monkeypatch.chdir(folder.path / "sub/deep")
    commit = git_state(folder.path).commit
    assert commit and [git_state(Path(one)).commit for one in (".", "..", str(tmp_path / "link"))] == [commit] * 3


def test_of_the_environment_of_git_only_settings_apply(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.git("init", "-q")
    for name in ("train.py", "a.log"):
        folder.write(name)
    (tmp_path / "ignored").write_text("*.log\n")
    settings = {"COUNT": "1", "KEY_0": "core.excludesFile", "VALUE_0": f"{tmp_path}/ignored"}
    for name, value in settings.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert folder.names() == ["train.py"]


def test_the_state_of_a_detached_head_has_its_changes(folder: Folder) -> None:
    folder.git("init", "-q")
    folder.write("a.py", "one\n")
    folder.git("add", ".")
    folder.git("commit", "-q", "-m", "x")
    folder.git("checkout", "-q", "--detach")
    folder.write("a.py", "two\n")
    folder.write("new.py")
    found = git_state(folder.path)
    assert len(found.commit) == 40 and found.branch == ""
    assert "+two" in found.diff and found.untracked == ("new.py",)


def test_pointers_of_git_lfs_are_named(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", -3600.0)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456789\n"
    folder.write("weights.bin", pointer)
    folder.write("notes.md", pointer + b"x" * 2000)
    folder.write("train.py", b"# " + pointer)
    assert [folder.collect(most=9000).pointers for _ in range(2)] == [("weights.bin",)] * 2, "also when it is known"
    [line] = module.pointer_lines(("weights.bin",))
    assert line.startswith("sent as Git LFS pointers") and line.endswith("git lfs pull): weights.bin")
    assert module.pointer_lines(()) == []
    assert module.pointer_lines([str(number) for number in range(12)])[0].endswith(
        ": 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more"
    )


def test_the_store_refuses_and_removes_what_is_damaged(folder: Folder) -> None:
    name = folder.store.add(b"content")
    path = Path(folder.store.folder, name[:2], name[2:])
    path.write_bytes(b"CONTENT")
    assert folder.store.has(name, 7)
    with pytest.raises(DamagedError):
        folder.store.read(name, 100)
    assert not path.exists()
    path.symlink_to("/etc/hostname")
    assert not folder.store.has(name, path.stat().st_size)
    with pytest.raises(OSError, match=r"."):
        folder.store.read(name, 10_000)


def test_a_cut_object_is_continued(folder: Folder) -> None:
    content = os.urandom(3000)
    name = tree.digest(content)
    with folder.store.writer(name) as writer:
        writer.write(content[:1000])
    assert list(folder.store.begun()) == [(name, 1000)] and not folder.store.has(name, 3000)
    with folder.store.writer(name, 800) as writer:
        writer.write(content[800:])
        assert writer.done() == name
    assert folder.store.has(name, 3000) and not list(folder.store.begun())
    with folder.store.writer(name) as writer:
        writer.write(b"other")
        with pytest.raises(DamagedError):
            writer.done()
    assert not list(folder.store.begun()), "a wrong beginning is not used again"


def test_object_completed_during_listing_is_not_a_partial_one(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.store.writer(tree.digest(b"1")).close(remove=False)
    real = os.scandir

    def completed(path: Any) -> Any:
        with real(path) as found:
            entries = list(found)
        for entry in entries:
            Path(entry.path).unlink()
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", completed)
    assert list(folder.store.begun()) == []


def test_the_store_removes_what_was_used_least_recently(folder: Folder) -> None:
    names = [folder.store.add(bytes([number]) * 100) for number in range(5)]
    for age, name in enumerate(names):
        path = Path(folder.store.folder, name[:2], name[2:])
        os.utime(path, (1e9 - age, 1e9 - age))
    assert folder.store.prune(keep={names[4]}, limit=250) == 200
    assert [folder.store.has(name, 100) for name in names] == [True, False, False, False, True]
    assert folder.store.name == Store(folder.store.folder).name


def test_a_store_is_counted_after_much_was_added_or_a_while(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    monkeypatch.setattr(Store, "prune", lambda _, keep: counted.extend(keep))
    folder.store.tidy({"first"})
    folder.store.add(b"little")
    folder.store.tidy({"little"})
    os.utime(Path(folder.store.folder, "counted"), (1e9, 1e9))
    folder.store.tidy({"later"})
    monkeypatch.setattr("disttui.runner.protocol.objects._LITTLE", 9)
    Store(folder.store.folder).tidy({"another process"})
    folder.store.add(b"more")
    folder.store.tidy({"much"})
    assert counted == ["first", "later", "much"]


def test_an_unchanged_tree_of_2000_files_is_not_read_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", -3600.0)
    folder.git("init", "-q")
    for number in range(2000):
        folder.write(f"{number % 40}/{number}.py", str(number))
    first = folder.collect()
    monkeypatch.setattr(module._Collector, "_read", lambda *_: pytest.fail("read again"))
    with counted() as calls:
        assert folder.collect().sha256 == first.sha256
    assert calls.number < 2000 * 200  # measured: 75 for each file, in 0.1 ms
