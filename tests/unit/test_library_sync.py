"""Two people and one library: what each saves arrives, and nothing that somebody has written is lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api import libraries
from disttui.runner.api.library_edits import compare, history_of, read_for_edit, restore_profile
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.library import git
from disttui.runner.library.git import RemoteError, Repository
from disttui.runner.library.store import save
from disttui.runner.library.syncing import Synced
from disttui.runner.profile.library import Library
from disttui.runner.render.library import synced_lines
from tests.files import new_file
from tests.unit.library_kit import PROFILE, User, bare
from tests.unit.waiting import anybody_stands_in, wait_for

pytestmark = pytest.mark.git


@pytest.fixture
def users(tmp_path: Path) -> tuple[User, User]:
    """Alice has saved the profile `two`, and both have it."""
    remote = bare(tmp_path / "hub.git")
    alice, bob = User("alice", tmp_path, remote), User("bob", tmp_path, remote)
    assert alice.sync().cloned
    alice.save("two", PROFILE)
    assert alice.sync().sent == 1
    assert bob.sync().cloned and bob.read("two") == PROFILE
    return alice, bob


def test_different_keys_are_joined_with_their_comments(users: tuple[User, User]) -> None:
    alice, bob = users
    alice.edit("two", "train.py", "other.py  # newer")
    bob.edit("two", "- node1        # the left one", "- {host: node1, gpus: [3]}   # the right one")
    bob.edit("two", "restarts: 1", "restarts: 5")
    alice.sync()
    done = bob.sync()
    assert done.kept == () and done.sent == 2 and done.received == ("two.yaml",)
    alice.sync()
    wanted = PROFILE.replace("train.py", "other.py  # newer").replace("restarts: 1", "restarts: 5")
    wanted = wanted.replace("- node1        # the left one", "- {host: node1, gpus: [3]}   # the right one")
    assert alice.read("two") == bob.read("two") == wanted
    assert alice.git("log", "--format=%an: %s").splitlines() == [
        "bob: two: launch.restarts", "bob: two: hosts.node1", "alice: two: job.script", "alice: two: new"
    ]  # fmt: skip
    assert "launch.restarts: 1 → 5" in alice.git("log", "-1", "--format=%b")
    assert alice.git("status", "--porcelain") == ""


def test_of_the_same_key_both_versions_are_kept(users: tuple[User, User]) -> None:
    alice, bob = users
    alice.edit("two", '"100"', '"200"')
    bob.edit("two", '"100"', '"300"')
    bob.edit("two", "restarts: 1", "restarts: 2")
    alice.sync()
    done = bob.sync()
    assert [tuple(each) for each in done.kept] == [("two.yaml", "two@bob.yaml")]
    alice.sync()
    for user in users:
        assert user.read("two") == PROFILE.replace('"100"', '"200"')
        assert user.read("two@bob") == PROFILE.replace('"100"', '"300"').replace("restarts: 1", "restarts: 2")
        assert "<<<<" not in "".join(path.read_text() for path in user.library.folder.glob("*.yaml"))


def test_of_two_syncs_of_one_clone_one_fetches_after_the_other(
    users: tuple[User, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, inside, most = Repository.fetch, [0], []
    both = threading.Barrier(2)

    def fetched(repository: Repository) -> None:
        inside[0] += 1
        most.append(inside[0])
        if len(most) == 1:
            wait_for(lambda: len(most) == 2 or anybody_stands_in("wait_for_lock"), "the other one, which must not come")
        fetch(repository)
        inside[0] -= 1

    def synced(user: User) -> None:
        both.wait(60)
        user.sync()

    monkeypatch.setattr(Repository, "fetch", fetched)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(synced, (users[0], users[0])))
    assert most == [1, 1]


def test_an_edit_wins_over_a_removal(users: tuple[User, User]) -> None:
    alice, bob = users
    alice.save("two", None)
    bob.edit("two", "restarts: 1", "restarts: 2")
    alice.sync()
    bob.sync()
    alice.sync()
    assert alice.read("two") == bob.read("two") == PROFILE.replace("restarts: 1", "restarts: 2")


def test_edits_by_hand_are_saved_unless_broken(users: tuple[User, User]) -> None:
    alice, bob = users
    path = new_file(bob.library.folder / "two.yaml", PROFILE.replace("train.py", "hand.py"))
    (bob.library.folder / "worse.yaml").write_text("disttui: 1\nhosts: [\n")
    (bob.library.folder / ".two.yaml.swp").write_text("x")
    done = bob.sync()
    assert done.by_hand == ("two.yaml",) and "worse.yaml:3:1: not valid YAML" in done.left[0][1]
    alice.sync()
    assert alice.read("two") == path.read_text() and alice.read("worse") is None
    path.unlink()
    bob.sync()
    assert path.exists(), "only `library remove` removes"


def test_an_edit_begun_before_somebody_else_saved_is_joined(users: tuple[User, User]) -> None:
    alice, _ = users
    alice.edit("two", "train.py", "other.py")
    saved = alice.save("two", PROFILE.replace("restarts: 1", "restarts: 9"), base=PROFILE)
    assert saved.joined and alice.read("two") == PROFILE.replace("train.py", "other.py").replace(
        "restarts: 1", "restarts: 9"
    )
    saved = alice.save("two", PROFILE.replace("train.py", "third.py"), base=PROFILE)
    assert saved.other == "two@alice" and "third.py" in (alice.read("two@alice") or "")
    with pytest.raises(InputError, match="team/two: a profile of this name already exists"):
        save(alice.library, "two", "x", None, alice.environ)


def test_offline_nothing_is_lost_and_a_later_sync_catches_up(users: tuple[User, User], tmp_path: Path) -> None:
    alice, bob = users
    (tmp_path / "hub.git").rename(tmp_path / "away")
    alice.edit("two", "train.py", "off.py")
    with pytest.raises(RemoteError, match=r"cannot reach .*hub.git: .*\n  → Your edits stay here") as caught:
        alice.sync()
    assert caught.value.exit_code == 3
    (tmp_path / "away").rename(tmp_path / "hub.git")
    alice.sync()
    bob.sync()
    assert "off.py" in (bob.read("two") or "")


def test_a_library_that_is_away_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    away, here = (Library(name, "team", Path(name), url="x") for name in ("away", "here"))

    def synced(library: Library, environ: object) -> Synced:
        if library is away:
            raise RemoteError("cannot reach it", place="away")
        return Synced()

    monkeypatch.setattr(libraries, "libraries", lambda _: [away, here])
    monkeypatch.setattr(libraries, "sync", synced)
    found = libraries.sync_libraries({})
    assert next(found)[0] is here
    with pytest.raises(RemoteError, match="away: cannot reach it"):
        next(found)


def test_ssh_is_called_alike_for_all(tmp_path: Path) -> None:
    remote = bare(tmp_path / "hub.git")
    ssh, log = tmp_path / "ssh", tmp_path / "calls"
    new_file(ssh, f'#!/bin/sh\necho "$@" >> {log}\nfor last; do :; done\nexec sh -c "$last"\n', 0o755)
    alice = User("alice", tmp_path, f"hub:{remote}")
    alice.environ |= {"PATH": f"{tmp_path}:{alice.environ['PATH']}", "DISTTUI_SSH_CONFIG": str(tmp_path / "config")}
    alice.sync()
    alice.save("two", PROFILE)
    assert alice.sync().sent == 1
    calls = log.read_text().splitlines()
    assert {call.split()[-2] for call in calls} == {"git-upload-pack", "git-receive-pack"}
    assert all(f"-F {tmp_path}/config -o BatchMode=yes -o ConnectTimeout=8" in call for call in calls)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can log in as others")
def test_a_repository_of_a_group_is_shared_by_its_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as made:  # unlike tmp_path, open to other accounts
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "home").mkdir(mode=0o777)
        (folder / "home").chmod(0o777)
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(folder / "system"))
        page = (Path(__file__).parents[2] / "docs/library.md").read_text()
        [recipe] = re.findall(r"```sh\n(git init --bare --shared.*?)```", page, re.DOTALL)
        recipe = recipe.replace("/srv/", f"{folder}/").replace("lab", "70009")
        users = [_at_hub(folder, name, uid) for name, uid in (("alice", 70001), ("bob", 70002))]
        first, rest = recipe.split("\n", 1)
        subprocess.run(first.replace("--shared=group", ""), shell=True, check=True)
        with pytest.raises(RemoteError, match=r"dubious ownership.*\n.*safe\.directory"):
            users[0].sync()
        subprocess.run(recipe.splitlines()[-1], shell=True, check=True)
        users[0].sync()
        users[0].save("two", PROFILE)
        with pytest.raises(RemoteError, match=r"cannot send to .*\n  → It belongs to another account.*--shared=group"):
            users[0].sync()
        shutil.rmtree(folder / "profiles.git")
        subprocess.run(f"{first}\n{rest}", shell=True, check=True)
        assert users[0].sync().sent == 1
        users[1].sync()
        users[1].edit("two", "train.py", "other.py")
        assert users[1].sync().sent == 1 and users[0].sync().received == ("two.yaml",)


def _at_hub(folder: Path, name: str, uid: int) -> User:
    """A user whose ssh logs in to an account of their own on this machine."""
    ssh = folder / f"bin-{name}/ssh"
    ssh.parent.mkdir()
    login = f"setpriv --reuid={uid} --regid={uid} --groups=70009 env HOME={folder}/home"
    new_file(ssh, f'#!/bin/sh\nfor last; do :; done\nexec {login} sh -c "$last"\n', 0o755)
    user = User(name, folder, f"hub:{folder}/profiles.git")
    user.environ["PATH"] = f"{ssh.parent}:{user.environ['PATH']}"
    user.environ["GIT_CONFIG_SYSTEM"] = str(folder / "system")
    return user


def test_many_files_edited_by_hand_are_one_commit(users: tuple[User, User], monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = users
    for at in range(100):
        (alice.library.folder / f"p{at}.yaml").write_text(PROFILE.replace("100", str(at)))
    processes: list[object] = []
    run = git.run

    def counted(*words: Any, **given: Any) -> bytes:
        processes.append(words)
        return run(*words, **given)

    monkeypatch.setattr(git, "run", counted)
    done = alice.sync()
    assert len(done.by_hand) == 100 and done.sent == 1 and len(processes) < 40
    assert "… and 90 more manually edited files" in "\n".join(synced_lines("team", done))
    assert bob.sync().received == done.by_hand and bob.read("p99") == PROFILE.replace("100", "99")
    assert history_of("team/p7", alice.environ)[0].subject == "100 manually edited files"


def test_sync_reports_skipped_hooks_of_a_writable_repository(users: tuple[User, User], tmp_path: Path) -> None:
    alice, _ = users
    hub = tmp_path / "hub.git"
    (hub / "hooks").mkdir(exist_ok=True)
    hook = new_file(hub / "hooks/pre-receive", "#!/bin/sh\nexit 1\n", 0o755)
    hub.chmod(0o775)
    alice.edit("two", "train.py", "mine.py")
    done = alice.sync()
    assert done.sent == 1 and "▲ the repository's hooks were skipped" in "\n".join(synced_lines("team", done))
    assert "hooks" not in "\n".join(synced_lines("team", alice.sync())), "nothing was sent"
    hook.unlink()
    alice.edit("two", "mine.py", "train.py")
    assert not alice.sync().hooks_left_out, "there is none"
    (hub / "config").write_text((hub / "config").read_text() + "[core]\nhooksPath = /hooks\n")
    alice.edit("two", "train.py", "last.py")
    assert alice.sync().hooks_left_out


def test_repeatedly_rejected_pushes_end_in_one_clear_error(users: tuple[User, User], tmp_path: Path) -> None:
    alice, _ = users
    hook = new_file(tmp_path / "hub.git/hooks/update", "#!/bin/sh\necho failed to update ref >&2\nexit 1\n", 0o755)
    alice.edit("two", "train.py", "mine.py")
    with pytest.raises(RemoteError, match="others pushed first 10 times in a row"):
        alice.sync()
    hook.write_text("#!/bin/sh\necho 'only on Mondays' >&2\nexit 1\n")
    with pytest.raises(RemoteError, match=r"cannot send to .*: .*only on Mondays"):
        alice.sync()
    hook.unlink()
    assert alice.sync().sent == 1 and "mine.py" in (alice.read("two") or "")


def test_a_clone_that_cannot_be_used(users: tuple[User, User], tmp_path: Path) -> None:
    alice, bob = users
    alice.git("checkout", "-q", "--detach")
    with pytest.raises(DisttuiError, match=r"not a branch\n  → Switch to its branch: git -C .* switch main"):
        alice.sync()
    alice.git("switch", "-q", "main")
    blob = alice.git("rev-parse", "HEAD:two.yaml").strip()
    (alice.library.folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    (alice.library.folder / "two.yaml").unlink()
    with pytest.raises(InputError, match=r"the clone is damaged.*\n  → Move .*team away, then sync again"):
        alice.sync()
    folder = bob.library.folder
    folder.rename(tmp_path / "gone")
    with pytest.raises(InputError, match=r"team: the folder of this library is missing\n  → disttui library sync team"):
        bob.save("two", PROFILE, base=PROFILE)
    assert bob.sync().cloned and bob.read("two") == PROFILE
    bob.environ["PATH"] = str(tmp_path)
    with pytest.raises(InputError, match="the program git is not installed"):
        bob.sync()


def test_a_full_disk_leaves_the_old_file(users: tuple[User, User], monkeypatch: pytest.MonkeyPatch) -> None:
    alice, _ = users

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("disttui.runner.profile.save.os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        alice.edit("two", "train.py", "lost.py")
    monkeypatch.undo()
    assert alice.read("two") == PROFILE and alice.sync().sent == 0
    assert sorted(path.name for path in alice.library.folder.iterdir()) == [".git", "two.yaml"]


def test_names_of_no_profile_are_refused_with_suggestions(users: tuple[User, User]) -> None:
    alice, _ = users
    for name, message in (
        ("tem/two", r"library tem not found\n  → Did you mean team\?"),
        ("examples/2node", "examples/2node is built in\n  → Copy it first"),
        ("team/../two", "not the name of a profile in a library"),
    ):
        with pytest.raises(InputError, match=message):
            read_for_edit(name, alice.environ)
    first = history_of("team/two", alice.environ)[-1].id
    alice.edit("two", "train.py", "other.py")
    [compared] = compare("team/two", first[:8], alice.environ)
    assert compared.changes == [("job.script", "train.py", "other.py")]
    restore_profile("team/two", first, alice.environ)
    assert alice.read("two") == PROFILE
    assert [each.subject for each in history_of("team/two", alice.environ)] == [
        f"two: as of {first[:10]}", "two: job.script", "two: new"
    ]  # fmt: skip


def test_a_secret_that_is_taken_out_is_not_in_the_message(users: tuple[User, User], tmp_path: Path) -> None:
    alice, _ = users
    token = "hf_" + "a1B2" * 8
    new_file(alice.library.folder / "two.yaml", PROFILE + f"env: {{TOKEN: {token}}}\n")
    alice.git("commit", "-qam", "by hand")
    alice.edit("two", token, '"${env:TOKEN}"')
    message = alice.git("log", "-1", "--format=%B")
    assert "env.TOKEN: *** → " in message and token not in message
