"""A repository, a folder or a list of a stranger's: refused, or shown harmlessly."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.api.libraries import add_library, check_libraries, list_library
from disttui.runner.api.library_edits import compare
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.library import store
from disttui.runner.library.git import _BOUNDED, GitError, url_flaw
from disttui.runner.library.git import run as run_git
from disttui.runner.library.store import join, join_lines, put, save
from disttui.runner.profile.library import Library
from disttui.runner.profile.load import load
from disttui.runner.profile.save import as_data
from disttui.runner.render.library import library_table
from tests.command import disttui
from tests.counting import counted
from tests.files import new_file, new_folder
from tests.unit.library_kit import PROFILE, User, bare
from tests.unit.waiting import anybody_stands_in, wait_for


def git(folder: Path, *words: str, given: bytes = b"") -> str:
    who = ("-c", "user.name=mallory", "-c", "user.email=m@x", "-c", "core.hooksPath=/dev/null")
    done = subprocess.run(["git", "-C", folder, *who, *words], input=given, capture_output=True, check=True)
    return done.stdout.decode().strip()


def commit(remote: Path, entries: list[tuple[str, str, str]]) -> None:
    """Put a commit with these entries (mode, name, content) onto main, by their raw bytes."""
    lines = b""
    for mode, name, content in entries:
        kind = "tree" if mode == "40000" else "blob"
        blob = content if kind == "tree" else git(remote, "hash-object", "-w", "--stdin", given=content.encode())
        lines += f"{mode} {name}".encode() + b"\0" + bytes.fromhex(blob)
    tree = git(remote, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=lines)
    git(remote, "update-ref", "refs/heads/main", git(remote, "commit-tree", "-m", "\x1b[2Jevil", tree))


@pytest.mark.git
def test_hostile_repository_runs_and_writes_nothing_outside(tmp_path: Path) -> None:
    remote, mark = bare(tmp_path / "hub.git"), tmp_path / "ran"
    hidden = git(remote, "hash-object", "-t", "tree", "-w", "--stdin")
    commit(remote, [
        ("100644", "\x1b[31mred.yaml", PROFILE.replace("two boxes", "\x1b]0;x\x07")),
        ("100644", "-x.yaml", PROFILE),
        ("100644", ".gitattributes", "* filter=evil\n*.yaml filter=evil\n"),
        ("100644", ".hidden.yaml", PROFILE),
        ("100644", "cmd.yaml", PROFILE + "env: {X: \"${cmd:touch " + str(mark) + "}\"}\n"),
        ("40000", "empty", hidden),
        ("100644", "good.yaml", PROFILE),
        ("120000", "link.yaml", "/etc/passwd"),
        ("100644", "tag.yaml", PROFILE + f"env: !!python/object/apply:os.system ['touch {mark}']\n"),
        ("100644", "wide.yaml", "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a, *a]\n" for n in range(9))),
    ])  # fmt: skip
    alice = User("alice", tmp_path, remote)
    (alice.home / ".gitconfig").write_text(f'[filter "evil"]\n  smudge = touch {mark}\n  required = true\n')
    alice.environ["GIT_DIR"] = str(tmp_path / "elsewhere")
    alice.sync()
    names = {path.name for path in alice.library.folder.iterdir()}
    assert names == {".git", "-x.yaml", "cmd.yaml", "good.yaml", "tag.yaml", "wide.yaml"}, "no link, nothing hidden"
    assert alice.read("good") == PROFILE and not mark.exists()
    shown = library_table(list_library(alice.environ, "team"))
    assert "\x1b" not in shown and "\x07" not in shown
    assert "python/object/apply:os.system' is not allowed" in shown, shown
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(InputError):
        load(alice.library.folder / "tag.yaml")


@pytest.mark.git
def test_a_file_that_becomes_a_folder_stops_no_sync(tmp_path: Path) -> None:
    remote = bare(tmp_path / "hub.git")
    blob = git(remote, "hash-object", "-w", "--stdin", given=PROFILE.encode())
    tree = git(remote, "hash-object", "-t", "tree", "-w", "--stdin", given=b"100644 y.yaml\0" + bytes.fromhex(blob))
    commit(remote, [("40000", "x.yaml", tree)])
    alice = User("alice", tmp_path, remote)
    alice.sync()
    for entry, name in ((("100644", "x.yaml", PROFILE), "x"), (("40000", "x.yaml", tree), "x.yaml/y")):
        commit(remote, [entry])
        assert set(alice.sync().received) == {"x.yaml", "x.yaml/y.yaml"}
        assert alice.read(name) == PROFILE


@pytest.mark.git
def test_small_tree_naming_endless_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = bare(tmp_path / "hub.git")
    alice = User("alice", tmp_path, remote)
    blob = git(remote, "hash-object", "-w", "--stdin", given=PROFILE.encode())
    names = [f"{number:02}.yaml" for number in range(30)]
    lines = b"".join(f"100644 {name}".encode() + b"\0" + bytes.fromhex(blob) for name in names)
    wide = git(remote, "hash-object", "-t", "tree", "-w", "--stdin", given=lines)
    commit(remote, [("100644", ".hidden.yaml", PROFILE), ("40000", "wide", wide)])
    for limit in ("_MOST_FILES", "_MOST_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(f"disttui.runner.library.syncing.{limit}", 20)
            with pytest.raises(InputError, match=r"the library has 30 files with 0 MiB, more than"):
                alice.sync()
        assert not alice.library.folder.exists()
    assert alice.sync().cloned and len(list(alice.library.folder.glob("wide/*"))) == 30
    with monkeypatch.context() as patched:
        patched.setattr("disttui.runner.library.syncing._MOST_FILES", 0)
        alice.sync()  # nothing is to be written
    deep = wide
    for _ in range(8):
        lines = b"".join(f"40000 {number}".encode() + b"\0" + bytes.fromhex(deep) for number in range(9))
        deep = git(remote, "hash-object", "-t", "tree", "-w", "--stdin", given=lines)
    commit(remote, [("40000", "deep", deep)])
    monkeypatch.setattr("disttui.runner.library.git._MOST", 1 << 20)
    with pytest.raises(InputError, match="prints more than 1 MiB: not a profile library"):
        alice.sync()
    assert alice.read("wide/07") == PROFILE, "what was there stays"


@pytest.mark.git
def test_fetch_that_would_fill_the_disk_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, url = bare(tmp_path / "hub.git"), "hub:profiles.git"
    alice, bob = User("alice", tmp_path, url), User("bob", tmp_path, url)
    commit(remote, [("100644", "a.yaml", PROFILE)])
    alice.environ |= {"GIT_SSH_COMMAND": f"f() {{ git upload-pack {remote}; }}; f", "GIT_SSH_VARIANT": "simple"}
    assert alice.sync().cloned
    commit(remote, [("100644", ".big", random.Random(1).randbytes(4 << 20).hex())])
    part = tmp_path / "part.py"
    part.write_text(
        "import os, time\nsent = 0\n"
        "while sent < 3 << 20:\n    sent += os.write(1, os.read(0, 1 << 16))\n"
        "time.sleep(600)\n"
    )
    stalling = f"f() {{ git upload-pack {remote} | '{sys.executable}' -S {part}; }}; f"
    bounded = [word.replace(f"ulimit -f {1 << 21}", "ulimit -f 2048") for word in _BOUNDED]
    monkeypatch.setattr("disttui.runner.library.git._BOUNDED", bounded)
    for user in (alice, bob):
        user.environ |= {"GIT_SSH_COMMAND": stalling, "GIT_SSH_VARIANT": "simple"}
        with pytest.raises(InputError, match=rf"^{url}: more than 1,024 MiB to fetch, .*\n  → Remove large files"):
            user.sync()
    assert alice.read("a") == PROFILE and not bob.library.folder.exists()
    assert not list(alice.library.folder.glob(".git/objects/**/tmp_*")), "what came of it is removed"


@pytest.mark.git
def test_a_remote_of_endless_branches_is_one_branch_here(tmp_path: Path) -> None:
    remote = bare(tmp_path / "hub.git")
    commit(remote, [("100644", "a.yaml", PROFILE)])
    head = git(remote, "rev-parse", "main")

    def branch_off(name: str) -> None:
        made = "".join(f"create refs/heads/{name}-{number} {head}\n" for number in range(500))
        git(remote, "update-ref", "--stdin", given=made.encode())

    branch_off("before")
    alice = User("alice", tmp_path, remote)
    assert alice.sync().cloned
    branch_off("after")
    commit(remote, [("100644", "b.yaml", PROFILE)])
    assert alice.sync().received == ("a.yaml", "b.yaml")
    assert len([path for path in alice.library.folder.rglob(".git/**/*") if path.is_file()]) < 40
    assert not (alice.library.folder / ".git/logs").exists()
    git(remote, "update-ref", "-d", "refs/heads/main")
    assert alice.sync().sent == 1, "a branch that is gone there is made again"


@pytest.mark.git
def test_a_pack_that_takes_endless_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = bare(tmp_path / "hub.git")
    blob = git(remote, "hash-object", "-w", "--stdin", given=bytes(256 << 20))
    commit(remote, [("40000", "x", git(remote, "mktree", given=f"100644 blob {blob}\tzeros\n".encode()))])
    bounded = [word.replace(f"ulimit -d {2 << 20}", f"ulimit -d {128 << 10}") for word in _BOUNDED]
    monkeypatch.setattr("disttui.runner.library.git._BOUNDED", bounded)
    with pytest.raises(InputError, match="MiB to fetch, or files that need more memory"):
        User("alice", tmp_path, remote).sync()


@pytest.mark.git
def test_the_longest_name_of_a_file_stops_no_sync(tmp_path: Path) -> None:
    remote = bare(tmp_path / "hub.git")
    commit(remote, [("100644", "a.yaml", PROFILE), ("100644", f"{'n' * 250}.yaml", PROFILE)])
    alice = User("alice", tmp_path, remote)
    assert alice.sync().cloned and alice.read("n" * 250) == PROFILE


def test_a_remote_that_never_stops_talking_is_left_in_time(tmp_path: Path) -> None:
    new_file(tmp_path / "git", "#!/bin/sh\nwhile :; do echo remote: soon >&2; done\n", 0o755)
    with pytest.raises(GitError, match="git fetch did not end after 1 s"):
        run_git(["fetch"], {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, seconds=1)


@pytest.mark.git
@pytest.mark.parametrize("others", [".", "config", "hooks", "hooks/pre-receive"])
def test_hook_writable_by_others_does_not_run(others: str, tmp_path: Path) -> None:
    remote, mark = bare(tmp_path / "hub.git"), tmp_path / "ran"
    new_file(remote / "hooks/pre-receive", f"#!/bin/sh\ntouch {mark}\n", 0o755)
    (remote / others).chmod((remote / others).stat().st_mode | 0o020)
    for name, address in (("alice", f"{remote}"), ("bob", f"file://{remote}")):
        user = User(name, tmp_path, address)
        user.sync()
        user.save(name, PROFILE)
        assert user.sync().sent == 1 and not mark.exists()
    (remote / others).chmod((remote / others).stat().st_mode & ~0o020)
    user.save("more", PROFILE)
    assert user.sync().sent == 1 and mark.exists(), "the user's own hooks run"


@pytest.mark.git
@pytest.mark.parametrize("name", ["..", ".git", ".GIT", "a/../../x.yaml"])
def test_a_tree_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    remote = bare(tmp_path / "hub.git")
    inner = git(remote, "hash-object", "-w", "--stdin", given=b"[core]\n\tfsmonitor = touch x\n")
    tree = git(
        remote,
        "hash-object",
        "-t",
        "tree",
        "-w",
        "--literally",
        "--stdin",
        given=b"100644 config\0" + bytes.fromhex(inner),
    )
    commit(remote, [("40000", name, tree)])
    alice = User("alice", tmp_path, remote)
    with pytest.raises(DisttuiError, match="cannot be cloned"):
        alice.sync()
    assert not alice.library.folder.exists() and not list(tmp_path.rglob("x.yaml"))
    assert sorted(path.name for path in alice.library.folder.parent.iterdir()) == ["team.lock"]


@pytest.mark.parametrize(
    ("url", "flaw"),
    [
        ("ext::sh -c x", "runs a program"),
        ("--upload-pack=x", "not the address"),
        ("https://u:secret@h/x", "a password"),
        ("x\x1b[2J", "not the address"),
        ("hub:profiles.git", ""),
        ("ssh://git@hub:22/x.git", ""),
        ("/srv/x.git", ""),
    ],
)
def test_addresses_that_are_not_given_to_git(url: str, flaw: str) -> None:
    assert (flaw in url_flaw(url)) if flaw else url_flaw(url) == ""


def test_conflicting_save_does_not_rewrite_the_file(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "shared")
    library, alice = Library("lab", "team", folder), User("alice", tmp_path, "none")
    save(library, "two", PROFILE, None, alice.environ)
    theirs = PROFILE.replace('"100"', '"200"')
    (folder / "two.yaml").write_text(theirs)

    def written() -> tuple[int, int]:
        found = (folder / "two.yaml").stat()  # whose time of the last read changes
        return found.st_ino, found.st_mtime_ns

    before = written()
    saved = save(library, "two", PROFILE.replace('"100"', '"300"'), PROFILE, alice.environ)
    assert saved.other and written() == before, "bob's editor may write it at this moment"


def test_join_of_extending_profiles_must_be_valid(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "shared")
    library, alice = Library("lab", "team", folder), User("alice", tmp_path, "none")
    (folder / "base.yaml").write_text("hosts: [local]\nnum_processes: 2\n")
    base = "disttui: 1\nextends: base\njob:\n  args: []\n"
    (folder / "two.yaml").write_text(base + "  script: train.py\n")
    saved = save(library, "two", base + "  module: train\n", base, alice.environ)
    assert saved.other and not saved.joined
    assert (folder / "two.yaml").read_text() == base + "  script: train.py\n"


def test_huge_file_in_a_shared_folder_is_not_read_whole(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "shared")
    with (folder / "two.yaml").open("wb") as file:
        file.truncate(20 << 30)
    alice = User("alice", tmp_path, "none")
    with pytest.raises(InputError, match=r"two\.yaml: larger than 4 MiB"):
        save(Library("lab", "team", folder), "two", PROFILE, PROFILE, alice.environ)


def test_a_pipe_in_a_shared_folder_is_not_waited_for(tmp_path: Path) -> None:
    alice = User("alice", tmp_path, "none")
    folder = new_folder(tmp_path / "shared")
    os.mkfifo(folder / "two.yaml")
    (alice.home / "config/disttui/config.yaml").write_text(f"libraries: [{{name: team, folder: {folder}}}]\n")
    for use in (lambda: compare("team/two", None, alice.environ), lambda: alice.save("two", PROFILE, base="")):
        with pytest.raises(InputError, match=r"two\.yaml: not a regular file"):
            use()


def test_empty_library_address_is_not_the_current_folder(tmp_path: Path) -> None:
    alice = User("alice", tmp_path, "none")
    with pytest.raises(InputError, match=r"nor a folder|not a folder"):
        add_library("lab", "", alice.environ)


def test_what_is_too_long_for_a_path_is_one_clear_error(tmp_path: Path) -> None:
    alice = User("alice", tmp_path, "none")
    with pytest.raises(InputError, match=r"nor a folder|not a folder"):
        add_library("lab", 5000 * "x", alice.environ)
    with pytest.raises(InputError, match=r"nor a folder|not a folder"):
        list(check_libraries([5000 * "x"], alice.environ))


def test_two_users_of_a_folder_who_save_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(tmp_path / "shared")
    users = [User(name, tmp_path, "none") for name in ("alice", "bob")]
    library = Library("lab", "team", folder)
    base = PROFILE + "env:\n  A: a   # of alice\n  B: a   # of bob\n"
    save(library, "two", base, None, users[0].environ)

    came: list[str] = []

    def late(library: Library, name: str, text: str | None) -> None:
        came.append(name)
        if len(came) == 1:
            wait_for(lambda: len(came) == 2 or anybody_stands_in("wait_for_lock"), "the other one")
        put(library, name, text)

    monkeypatch.setattr(store, "put", late)

    def edit(user: User, key: str) -> None:
        save(library, "two", base.replace(f"  {key}: a ", f"  {key}: b "), base, user.environ)

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(edit, *each) for each in zip(users, "AB", strict=True)]:
            done.result()
    data = as_data((folder / "two.yaml").read_text())
    assert data and data["env"] == {"A": "b", "B": "b"}


@pytest.mark.git
def test_two_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    alice = User("alice", tmp_path, bare(tmp_path / "hub.git"))
    alice.sync()
    keys = [f"K{number}" for number in range(4)]
    base = PROFILE + "env:\n" + "".join(f"  {key}: a   # of {key}\n" for key in keys)
    alice.save("two", base)
    edited = [base.replace(f"  {key}: a ", f"  {key}: b ") for key in keys]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda text: alice.save("two", text, base=base), edited))
    data = as_data(alice.read("two") or "")
    assert data and data["env"] == dict.fromkeys(keys, "b")
    assert len(alice.git("log", "--format=%h").split()) == 5


TEXT = st.sampled_from(["a", "b", "c", "1", "true", "[x, y]", "{p: q}"])
EDITS = st.dictionaries(st.sampled_from("ABCDEF"), TEXT, max_size=4)


@given(st.dictionaries(st.sampled_from("ABCDE"), TEXT, min_size=1), EDITS, EDITS, st.booleans())
def test_a_join_has_both_edits_or_there_is_none(
    base: dict[str, str], mine: dict[str, str], theirs: dict[str, str], commented: bool
) -> None:
    def comment(key: str, note: str) -> str:
        return f"   # {key} {note if key in note else ''}" if commented else ""

    def text(values: dict[str, str], note: str) -> str:
        return "".join(f"{key}: {value}{comment(key, note)}\n" for key, value in values.items())

    old = text(base, "")
    one, other = {**base, **mine}, {**base, **theirs}
    joined = join(old, text(one, "".join(mine)), text(other, ""), lambda _: True)
    clash = [
        key
        for key in mine.keys() & theirs.keys()
        if mine[key] != theirs[key] and base.get(key) not in (mine[key], theirs[key])
    ]
    if clash:
        assert joined is None
    elif not commented:  # a comment that would be lost is a reason, too
        assert joined is not None
    if joined is not None:
        wanted = {**other, **{key: value for key, value in mine.items() if value != base.get(key)}}
        assert as_data(joined) == as_data(text(wanted, ""))
        assert not commented or all(f"# {key}" in joined for key in one.keys() | other.keys())


def test_lines_that_are_all_alike_cost_no_time() -> None:
    same, apart = "x\n" * 2_000, "".join(f"x\n{number}\n" for number in range(900))
    with counted() as calls:
        assert join_lines(same, "a\n" + same[2:], same[:-2] + "b\n") == "a\n" + same[2:-2] + "b\n"
        assert join_lines(apart, apart.replace("1", "y"), apart.replace("2", "z")) is None
        assert join_lines(same * 10, "a\n" + same * 10, same * 10 + "b\n") is None
    assert calls.number < 20_000  # of 4 million pairs of equal lines


def test_a_hook_of_the_library_checks_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(PROFILE)
    words = ("library", "validate", "--ci")
    done = disttui(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (tmp_path / "bad.yaml").write_text(PROFILE + "env: {HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz012345}\nlanch: 1\n")
    done = disttui(*words, cwd=tmp_path)
    assert done.returncode == 2 and "bad.yaml:12:1: unknown key 'lanch'" in done.stderr
    assert "looks like a Hugging Face token" in done.stderr and "hf_abc" not in done.stderr
