"""The code of a run as its profile asks for it, and as it is recorded, shown, compared and used again."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from disttui.runner.api.carrying import (
    RunCode,
    code_changes,
    code_file,
    code_files,
    collect_code,
    copy_code,
    keep_code,
    recorded_code,
    stepwise,
)
from disttui.runner.api.following import try_rules
from disttui.runner.api.rerunning import again
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.running import host_words
from disttui.runner.errors import InputError
from disttui.runner.hosts.survey import Tell, probe_request
from disttui.runner.profile.effects import effect_lines
from disttui.runner.profile.load import load, parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol import tree
from disttui.runner.runs.notes import Provenance, load_provenance
from disttui.runner.runs.registry import KnownRun, keep
from disttui.runner.sync import collect as collecting
from tests.files import new_file, new_folder


def profile(sync: str, script: str = "train.py", more: str = "") -> str:
    return f"disttui: 1\nhosts: [node1]\njob:\n  script: {script}\n  sync: {sync}\n{more}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its profile, of a user with folders of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = new_folder(tmp_path / "project")
    (made / "train.py").write_text("print(1)\n")
    (made / "mine.yaml").write_text(profile("."))
    return made


def collected(path: Path) -> tuple[Profile, RunCode]:
    read = load(path)
    code = collect_code(read)
    assert code is not None
    return read, code


def started(path: Path, run: str) -> KnownRun:
    """A run of the profile, as it is recorded before its hosts are asked."""
    read, code = collected(path)
    known = keep(read, [1], run, os.environ, source=str(path))
    Provenance("0", "3", (), ()).with_code(keep_code(known, code)).save(known.folder)
    return known


def test_the_folder_starts_at_the_file_of_the_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    read, code = collected(folder / "mine.yaml")
    assert code.folder == folder.resolve() and code.files == 2
    assert read.workdir(0) == "~/.disttui/runs/RUN/code"
    (folder / "conf").mkdir()
    (folder / "conf/other.yaml").write_text(profile("{from: .., to: /scratch/me, max: 2KiB, exclude: ['*.yaml']}"))
    read, code = collected(folder / "conf/other.yaml")
    assert code.folder == folder.resolve() and code.files == 1
    assert read.workdir(0) == "/scratch/me/RUN" and read.job.sync is not None and read.job.sync.max == 2048


@pytest.mark.parametrize(("text", "most"), [("500M", 5 * 10**8), ("1.5 kb", 1500), ("2Gi", 2**31), ("1tb", 10**12)])
def test_the_largest_size_may_have_any_usual_unit(text: str, most: int) -> None:
    sync = parse(profile(f"{{max: {text}}}"), "x.yaml").job.sync
    assert sync is not None and sync.max == most


def test_an_override_starts_at_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    read = load(folder / "mine.yaml", ["job.sync=."])
    code = collect_code(read)
    assert code and code.folder == folder.resolve()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{form: .}", "x.yaml:5:10: unknown key 'form', did you mean 'from'?"),
        ("{max: 5}", "x.yaml:5:15: max: '5', expected a size like 500MB"),
        ("{exclude: ['!a']}", "x.yaml:5:20: '!a', expected a pattern like data/ or *.bin"),
        ("{to: here}", "expected an absolute path"),
        ("''", "expected a local folder"),
    ],
)
def test_a_wrong_key_is_an_error_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ProfileErrors) as caught:
        parse(profile(text), "x.yaml")
    assert said in str(caught.value)


def test_set_adds_a_key_to_a_folder_in_one_word() -> None:
    sync = parse(profile("code"), "a.yaml", ("job.sync.max=6GB", "job.sync.include=[data/]")).job.sync
    assert sync and (sync.source, sync.max, sync.include) == ("code", 6 * 10**9, ("data/",))


def test_a_job_with_sync_has_no_workdir() -> None:
    with pytest.raises(ProfileErrors, match="runs in the copy of its folder, remove workdir"):
        parse(profile(".", more="  workdir: ~/x\n"), "x.yaml")


def test_what_is_sent_is_among_the_effects_of_a_profile() -> None:
    lines = dict(effect_lines(parse(profile("{from: ~/x, include: [.env]}"), "x.yaml")))
    assert lines["job.sync"] == "on node1, copied from this machine: '~/x' 'include .env'"


def test_hosts_are_not_asked_for_code_that_is_sent() -> None:
    asked = probe_request(parse(profile("."), "x.yaml"), 0)
    assert (asked["workdir"], asked["script"]) == ("~", None)


def test_a_script_that_is_not_sent_is_an_error(folder: Path) -> None:
    (folder / "mine.yaml").write_text(profile(".", script="nope.py"))
    with pytest.raises(InputError, match=r"nope\.py: the script is not among the files"):
        collect_code(load(folder / "mine.yaml"))
    (folder / "mine.yaml").write_text(profile("{from: ., exclude: [train.py]}", script="./train.py"))
    with pytest.raises(InputError, match=r"the script is not sent: excluded by train\.py"):
        collect_code(load(folder / "mine.yaml"))
    (folder / "mine.yaml").write_text(profile("{from: .}", script="/opt/train.py"))
    assert collect_code(load(folder / "mine.yaml")), "this one lies on the hosts"


def test_a_single_file_is_sent_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))  # the folder itself cannot be sent
    (folder / "other.py").touch()
    (folder / "mine.yaml").write_text(profile("train.py"))
    _, code = collected(folder / "mine.yaml")
    assert [one.path for one in tree.decode(code.manifest)] == [b"train.py"]
    assert code.lines() == [f"code: 1 file, 9B, from {folder}/train.py"]
    known = started(folder / "mine.yaml", "mine-1")
    assert recorded_code(known).sha256 == code.sha256


def test_a_single_file_is_no_way_around_what_is_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    (folder / "link.py").symlink_to(tmp_path / "key")
    (folder / "mine.yaml").write_text(profile("link.py", script="link.py"))
    with pytest.raises(InputError, match="a link to a file"):
        collect_code(load(folder / "mine.yaml"))
    (folder / ".env").write_text("TOKEN=1")
    (folder / "train.py").write_text("#" * 2000)
    for sync, why in (
        (".env", "looks like a secret"),
        ("{from: train.py, max: 1KB}", "larger than job.sync.max"),
        ("{from: train.py, exclude: ['*.py']}", "excluded by"),
    ):
        script = ".env" if sync == ".env" else "train.py"
        (folder / "mine.yaml").write_text(profile(sync, script=script))
        with pytest.raises(InputError, match=f"the script is not sent: {why}"):
            collect_code(load(folder / "mine.yaml"))
    (folder / "mine.yaml").write_text(profile("x" * 300))
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        collect_code(load(folder / "mine.yaml"))


@pytest.mark.parametrize("sync", ["link", "link/hosts.yml"])
def test_a_link_in_a_team_library_sends_nothing_outside_of_it(
    sync: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's author names it; its reader is asked about a folder of the library."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/hosts.yml").write_text("token")
    (folder / "link").symlink_to(tmp_path / "private")
    (folder / "mine.yaml").write_text(profile(sync))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/disttui").mkdir(parents=True)
    (tmp_path / "config/disttui/config.yaml").write_text(f"libraries: [{{name: team, folder: {folder}}}]\n")
    with pytest.raises(InputError, match="a link leads out of the library team"):
        collect_code(load(folder / "mine.yaml"))


def test_a_script_may_be_named_through_links_and_dots(folder: Path) -> None:
    (folder / "v2").mkdir()
    (folder / "v2/train.py").touch()
    (folder / "current").symlink_to("v2")
    for script in ("current/train.py", "v2/../train.py"):
        (folder / "mine.yaml").write_text(profile(".", script=script))
        assert collect_code(load(folder / "mine.yaml"))
    (folder / "mine.yaml").write_text(profile(".", script=f"../{folder.name}/train.py"))
    with pytest.raises(InputError, match="the script is not among the files"):
        collect_code(load(folder / "mine.yaml"))


def test_the_reason_why_a_script_is_not_sent_has_its_cure(folder: Path) -> None:
    def refused(script: str, sync: str = ".") -> tuple[str, str]:
        (folder / "mine.yaml").write_text(profile(sync, script=script))
        with pytest.raises(InputError) as caught:
            collect_code(load(folder / "mine.yaml"))
        return caught.value.what, caught.value.cure

    (folder / "src").mkdir()
    (folder / "src/train.py").touch()
    (folder / "link.py").symlink_to("/etc/hostname")
    what, cure = refused("src/train.py", "{from: ., exclude: [src/]}")
    assert what == "the script is not sent: excluded by src/" and "Remove its pattern from job.sync.exclude" in cure
    what, cure = refused("link.py")
    assert "a link to outside of the folder" in what and "in place of the link" in cure
    (folder / ".gitignore").write_text("src/\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    assert refused("src/train.py") == ("the script is not sent: ignored by git", "Add src/ to job.sync.include.")
    (folder / "mine.yaml").write_text(profile("{from: ., include: [src/]}", script="src/train.py"))
    assert collect_code(load(folder / "mine.yaml"))


def test_lines_list_what_is_sent_and_what_is_not(folder: Path) -> None:
    (folder / "mine.yaml").write_text("disttui: 1\nhosts: [node1]\njob: {command: [env], sync: code}\n")
    (folder / "code").mkdir()
    _, code = collected(folder / "mine.yaml")
    sent = f"code: 0 files, 0B, from {folder}/code"
    assert code.lines() == [f"{sent}: it has no files, so the run gets an empty folder"]
    (folder / "code/.env").touch()
    _, code = collected(folder / "mine.yaml")
    empty = f"{sent}: all that is in it is left out, so the run gets an empty folder"
    assert code.lines() == [empty, "not sent: .env (0B): looks like a secret"]
    (folder / "code/weights.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    _, code = collected(folder / "mine.yaml")
    assert code.lines()[0] == f"code: 1 file, 56B, from {folder}/code" and "git lfs pull" in code.lines()[2]


def test_a_rerun_has_the_code_of_then_and_latest_that_of_now(folder: Path) -> None:
    known = started(folder / "mine.yaml", "mine-1")
    (folder / "train.py").write_text("print(2)\n")
    kept = load_provenance(known.folder)
    assert kept and kept.code and kept.code.where == "this machine" and len(kept.code.tree) == 64
    before, now = again(known).code, again(known, latest=True).code
    assert before and now and before.recorded and not now.recorded
    assert before.sha256 == kept.code.tree != now.sha256 and now.folder == folder.resolve()
    assert code_file(known, "train.py") == b"print(1)\n"
    with pytest.raises(InputError, match=r"job\.sync cannot be changed") as caught:
        again(known, ["job.sync.include=[data/]"])
    assert "--latest" in caught.value.cure
    assert again(known, ["job.sync.include=[data/]"], latest=True).code
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    moved = again(known, [f"job.sync={other}"], latest=True).code
    assert moved and moved.folder == other.resolve()


def test_code_on_a_terminal_has_no_escape_sequences(folder: Path) -> None:
    (folder / "train.py").write_bytes(b"\x1b]52;c;cHduZWQ=\x07if True:\n\tprint(1)\n")
    known = started(folder / "mine.yaml", "mine-1")
    command = [sys.executable, "-m", "disttui", "runs", "show", "--file", "train.py", known.run]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"\x1b]52")
    shown = pexpect.run(shlex.join(command), timeout=60)
    assert b"\x1b]52" not in shown and b"if True:\r\n        print(1)" in shown


def test_code_that_is_gone_is_an_error_with_its_cure(folder: Path) -> None:
    known = started(folder / "mine.yaml", "mine-1")
    (name,) = [sha256 for path, _, sha256 in code_files(known) if path == "train.py"]
    (folder.parent / "cache/disttui/objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(InputError, match="no longer on this machine") as caught:
        recorded_code(known)
    assert "--latest" in caught.value.cure
    with pytest.raises(InputError, match="no longer on this machine") as caught:
        copy_code(known, folder / "copy")
    assert caught.value.cure == "Look in the run's folder on its hosts.", "there is no --latest of pull"
    with pytest.raises(InputError, match="was not recorded on this machine"):
        recorded_code(replace(known, folder=folder))
    with pytest.raises(InputError, match="no known metrics"):  # the rules need no code
        try_rules(Viewer(os.environ), known, ["watch.spike=notify"], local=True)


def test_the_code_of_two_runs_is_compared_file_by_file(folder: Path) -> None:
    (folder / "old.py").write_text("old\n")
    (folder / "data.bin").write_bytes(b"\0" * 10)
    one = started(folder / "mine.yaml", "mine-1")
    (folder / "old.py").unlink()
    (folder / "train.py").write_text("print(2)\nTOKEN = 'ghp_0123456789abcdefghijABCDEFGHIJ012345'\n")
    (folder / "data.bin").write_bytes(b"\0" * 20)
    other = started(folder / "mine.yaml", "mine-2")
    lines = list(code_changes(one, other))
    assert "-print(1)" in lines and "+print(2)" in lines and "-old" in lines and "+++ /dev/null" in lines
    assert any(line.startswith("data.bin differs: 10B, ") for line in lines)
    assert not any("ghp_0123" in line for line in lines)
    assert list(code_changes(one, one)) == []


def test_changes_that_no_line_shows_are_named(folder: Path) -> None:
    (folder / "labels.txt").write_text("".join(f"{number % 1000}\n" for number in range(100_000)))
    one = started(folder / "mine.yaml", "mine-1")
    (folder / "labels.txt").write_text("".join(f"{number * 7 % 1000}\n" for number in range(100_000)))
    (folder / "train.py").write_bytes(b"print(1)\r\n")
    (folder / "mine.yaml").chmod(0o755)
    (folder / "empty.py").touch()
    lines = list(code_changes(one, started(folder / "mine.yaml", "mine-2")))
    names = ["empty.py", "labels.txt", "mine.yaml", "train.py"]
    assert [line.partition(" differs: ")[0] for line in lines] == names
    assert lines[0].endswith("nothing → 0B, e3b0c44298fc") and lines[2].endswith(", executable")


def test_the_code_of_a_run_is_copied_into_a_new_folder(folder: Path, tmp_path: Path) -> None:
    new_file(folder / "run.sh", "true\n", 0o755)
    (folder / "link").symlink_to("run.sh")
    known = started(folder / "mine.yaml", "mine-1")
    to = tmp_path / "copy"
    assert copy_code(known, to) == 4
    assert (to / "run.sh").stat().st_mode & 0o100 and (to / "link").read_text() == "true\n"
    with pytest.raises(InputError, match="cannot copy the code: File exists"):
        copy_code(known, to)


def test_reading_a_folder_reports_progress_and_can_be_cancelled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_PACE", -1.0)
    read, texts = load(folder / "mine.yaml"), list[str]()
    assert collect_code(read, tell=texts.append)
    assert texts[-1].startswith("reading: ")
    (folder / "train.py").write_text("print(2)\n")

    def left(text: str) -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        collect_code(read, tell=left)


def test_progress_in_bytes_does_not_bury_other_lines(folder: Path) -> None:
    lines: list[str] = []
    news = host_words(load(folder / "mine.yaml"), lines.append)
    said = ["reading: 1.2GB of 5.4GB", "the link broke; reconnecting"]
    for note in (*said, "1 of 2 files, 9B of 1MB, 1B/s, 9 s left"):
        news(0, "sending", note)
    assert [line.partition(" code: ")[2] for line in lines] == said


def test_work_whose_caller_has_left_ends_at_its_next_report() -> None:
    gone, ended = threading.Event(), threading.Event()

    def work(tell: Tell) -> None:
        tell(0, "sending", "reading")
        gone.wait(60)
        try:
            tell(0, "sending", "reading on")
        except CancelledError:
            ended.set()

    steps = stepwise(work)
    assert next(steps).words == "sending the code: reading"
    steps.close()
    gone.set()
    assert ended.wait(60)
