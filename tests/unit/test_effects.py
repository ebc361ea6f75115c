"""Nothing of a profile runs unseen: what it has run, where, and which secrets it sends stand before it happens."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.cli import viewing
from disttui.runner.cli.app import cli
from disttui.runner.profile.effects import bounded, difference, effect_lines, secrets
from disttui.runner.profile.load import parse
from disttui.runner.profile.trust import doubt
from disttui.runner.render.plan import plan_json, render_plan
from tests.command import disttui
from tests.counting import counted
from tests.files import new_file, new_folder
from tests.unit.planning import facts, planned

DISTTUI = str(Path(sys.executable).with_name("disttui"))
PROFILE = """
disttui: 1
hosts: [local]
activate: touch ran; true
job: {command: ["true"], workdir: WORK, env: {WANDB_API_KEY: "Bearer ${env:TOKEN}"}}
on_end: {command: [touch, ended], webhook: "https://me:pw@hooks.example.org/services/T0/secret"}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return new_file(tmp_path / "evil.yaml", PROFILE.replace("WORK", str(tmp_path / "work")))


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home), **more}


def command(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal to ask at."""
    return disttui(*words, env=environment(home, **more), cwd=home)


EVIL = {
    "hosts": [{}, {"activate": "source venv/bin/activate"}, {"python": "~/x/bin/python"}],
    "job": {"script": "train.py", "wrap": ["nice", "-n", "5"], "env": {"A": "${env:ONE}${env:TWO}", "B": "${env:ONE}"}},
    "on_end": {"command": ["sh", "-c", "a\n\x1b[8mb"], "webhook": "http://hooks.example.org"},
}
SHOWN = [
    ("python", "on node3, also during checks: ~/x/bin/python"),
    ("activate", "on node2, also during checks: source venv/bin/activate"),
    ("job.wrap", "on node1, node2, node3: nice -n 5"),
    ("job.script", "on node1, node2, node3: train.py"),
    ("on_end.command", "on this machine, when the run ends: sh -c 'a'\\n\"$(printf '\\\\033\\\\133\\\\070\\\\155b')\""),
    ("on_end.webhook", "on this machine, when the run ends: http://hooks.example.org"),
    ("${env:ONE}", "to node1, node2, node3, as A, B"),
    ("${env:TWO}", "to node1, node2, node3, as A"),
]


def test_all_that_runs_is_reported_with_its_hosts() -> None:
    it = planned(*[facts("cpu_desk")] * 3, **EVIL)  # type: ignore[arg-type]
    seen = list(effect_lines(it.profile))
    assert [key for key, _ in seen] == [key for key, _ in SHOWN]
    for (key, text), (_, expected) in zip(seen, SHOWN, strict=True):
        assert text == expected or key == "on_end.command"
    assert all(text.isprintable() for _, text in seen), "an escape could hide what is run"


def test_effects_include_preloads_and_resume_arguments() -> None:
    """`sh -c` is harmless until an argument is added; a preloaded library runs in every program."""
    it = planned(
        facts("cpu_desk"),
        facts("cpu_desk"),
        hosts=[{"env": {"LD_PRELOAD": "~/a.so"}}, {}],
        env={"PYTHONPATH": "~/lib", "OMP_NUM_THREADS": "1"},
        job={"command": ["sh", "-c"], "outputs": ["out/", "a b"]},
        launch={"restarts": 1, "resume_args": ["touch ran"], "preload": ["evil"]},
    )
    assert list(effect_lines(it.profile)) == [
        ("env.PYTHONPATH", "on node1, node2: ~/lib"),
        ("env.LD_PRELOAD", "on node1: ~/a.so"),
        ("launch.preload", "on node1, node2: evil"),
        ("job.command", "on node1, node2: sh -c"),
        ("launch.resume_args", "on node1, node2, from the second attempt on: 'touch ran'"),
        ("job.outputs", "on node1, node2, copied to this machine by `disttui runs pull`: out 'a b'"),
    ]


@pytest.mark.parametrize(
    "name",
    ["GCONV_PATH", "OPENSSL_CONF", "NCCL_CONF_FILE", "NCCL_ENV_PLUGIN", "TORCH_EXTENSIONS_DIR", "UCX_MODULE_DIR",
     "FI_PROVIDER_PATH", "HDF5_PLUGIN_PATH", "GIT_SSH_COMMAND", "GIT_CONFIG_COUNT", "OMPI_MCA_plm_rsh_agent"],
)  # fmt: skip
def test_a_variable_that_names_code_to_be_loaded_is_reported(name: str) -> None:
    it = planned(facts("cpu_desk"), env={name: "/x"}, job={"command": ["true"]})
    assert (f"env.{name}", "on node1: /x") in list(effect_lines(it.profile))


def test_the_plan_tells_what_runs_besides_the_job() -> None:
    it = planned(*[facts("cpu_desk")] * 3, **EVIL)  # type: ignore[arg-type]
    text = render_plan(it.plan, it.recommendation, it.findings)
    for key, line in SHOWN:
        if key not in ("job.script", "on_end.command"):
            assert line in text, text
    data: Any = plan_json(it.plan, it.recommendation, it.findings)
    assert {one["key"]: one["where"] for one in data["runs"]}["activate"] == ("node2",)
    assert {one["key"]: one["when"] for one in data["runs"]}["on_end.command"] == "end"
    assert [one["name"] for one in data["secrets"]] == ["ONE", "TWO"]


def test_a_secret_that_is_not_set_is_an_error_of_the_plan() -> None:
    job = {"builtin": "bytegpt", "env": {"KEY": "${env:WANDB}"}}
    host = facts("cpu_desk")
    assert planned(host, job=job, environ={"WANDB": "x"}).findings == ()
    (error,) = planned(host, job=job).found("error")
    assert "test.yaml:1:" in error and "the variable WANDB is not exported in this shell" in error


def test_validate_tells_what_a_profile_runs(profile: Path, tmp_path: Path) -> None:
    done = command(tmp_path, "profile", "validate", str(profile))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "  activate: on local, also during checks: touch ran; true",
        f"  job.workdir: on local: {tmp_path / 'work'}",
        "  job.command: on local: true",
        "  on_end.command: on this machine, when the run ends: touch ended",
        "  on_end.webhook: on this machine, when the run ends: https://hooks.example.org/…",
        "  ${env:TOKEN}: to local, as WANDB_API_KEY",
    ]


def test_a_plan_says_that_it_runs_activate_before_it_does(profile: Path, tmp_path: Path) -> None:
    done = command(tmp_path, "profile", "plan", str(profile), "--json")
    assert "disttui: local: running activate: touch ran; true" in done.stderr
    assert (tmp_path / "work" / "ran").exists()
    found = json.loads(done.stdout)
    assert {"key": "activate", "where": ["local"], "when": "plan", "words": ["touch ran; true"]} in found["runs"]
    assert any("the variable TOKEN is not exported" in one["what"] for one in found["findings"])
    assert done.returncode == 3 and not (tmp_path / "ended").exists()


@pytest.mark.root
def test_a_profile_of_another_user_is_not_run_without_a_yes(profile: Path, tmp_path: Path) -> None:
    os.chown(profile, 12345, 12345)
    for words in (["profile", "plan"], ["run"]):
        done = command(tmp_path, *words, str(profile), TOKEN="x")
        assert done.returncode == 2 and "connecting" not in done.stderr
        assert f"{profile}: it belongs to user 12345; not used until you confirm\n" in done.stderr
        assert "add --trust-profile" in done.stderr
    assert not (tmp_path / "work" / "ran").exists()
    done = command(tmp_path, "attach", "x", "--host", "local", "--profile", str(profile))
    assert done.returncode == 2 and "copy it to a folder of your own.\n" in done.stderr
    trusted = command(tmp_path, "profile", "plan", "--trust-profile", str(profile), TOKEN="x")
    assert "it belongs" not in trusted.stderr and (tmp_path / "work" / "ran").exists()
    assert "▲ it belongs to user 12345" in command(tmp_path, "profile", "validate", str(profile)).stdout


def asked(home: Path, answer: bytes, words: Sequence[str]) -> str:
    """What a terminal shows of a command whose question gets this answer."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execve(DISTTUI, [DISTTUI, *words], environment(home, TOKEN="x"))
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
            if b"[y/N]" in shown and answer:
                os.write(terminal, answer)
                answer = b""
    except OSError:
        pass  # Linux's way to say that nobody writes there any more
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown.decode().replace("\r\n", "\n")


def test_a_program_that_reads_json_is_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewing, "TerminalQuestions", lambda: pytest.fail("it asks"))
    file = new_file(tmp_path / "p.yaml", "disttui: 1\nhosts: [local]\njob: {builtin: bytegpt}\n")
    found = CliRunner().invoke(cli, ["exec", str(file), "--json", "--", "true"])
    assert (found.exit_code, found.exception) == (0, None), found.output


@pytest.mark.root
@pytest.mark.parametrize(("answer", "runs"), [(b"n\n", False), (b"\n", False), (b"y\n", True)])
def test_at_a_terminal_what_it_would_run_is_shown_and_asked(
    profile: Path, tmp_path: Path, answer: bytes, runs: bool
) -> None:
    os.chown(profile, 12345, 12345)
    shown = asked(tmp_path, answer, ["profile", "plan", str(profile)])
    assert "it belongs to user 12345. With your login, it runs:\n  activate: on local" in shown
    assert "on_end.command: on this machine, when the run ends: touch ended\n" in shown
    assert (tmp_path / "work" / "ran").exists() == runs


@pytest.mark.parametrize(
    ("file", "folder", "why"),
    [
        (0o644, 0o755, ""),
        (0o664, 0o775, ""),  # a team's
        (0o666, 0o755, "every user of this machine can write it"),
        (0o644, 0o777, "every user of this machine can replace files"),
        (0o644, 0o1777, ""),  # as /tmp is
    ],
)
def test_everybody_who_can_write_a_profile_decides_what_it_runs(
    tmp_path: Path, file: int, folder: int, why: str
) -> None:
    place = new_folder(tmp_path / "place" / "below")
    path = new_file(place / "x.yaml", "x", file)
    (tmp_path / "place").chmod(folder)
    seen = doubt(path, path.stat())
    assert why in seen if why else seen == ""
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    assert bool(doubt(link, link.stat())) == bool(why)


@pytest.mark.root
def test_a_folder_of_the_team_holds_colleagues_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = new_file(tmp_path / "x.yaml", "x")
    os.chown(path, 12345, 12345)
    assert doubt(path, path.stat())
    monkeypatch.setenv("DISTTUI_PROFILES", str(tmp_path))
    assert doubt(path, path.stat()) == ""
    monkeypatch.delenv("DISTTUI_PROFILES")
    monkeypatch.setenv("SUDO_UID", "12345")
    assert doubt(path, path.stat()) == "", "sudo's caller is the same person"


def test_the_profiles_that_come_with_disttui_need_no_yes() -> None:
    from disttui.runner.profile.library import list_profiles

    for entry in list_profiles():
        if entry.origin == "built in":
            assert doubt(entry.path, entry.path.stat()) == ""
            assert list(effect_lines(parse(entry.path.read_text(), "x")))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("ABC"), st.sampled_from(["x", "${env:P}", "${env:P}${env:Q}"])), min_size=3
    )
)
def test_every_host_that_gets_a_secret_is_named(envs: list[dict[str, str]]) -> None:
    common, job, *own = envs
    hosts = [{"host": f"n{rank}", "env": env} for rank, env in enumerate(own)]
    data = {"disttui": 1, "hosts": hosts, "env": common, "job": {"command": ["true"], "env": job}}
    profile = parse(json.dumps(data), "p")
    for name in ("P", "Q"):
        texts = [{one for one, text in profile.host_env(rank).items() if name in text} for rank in range(len(own))]
        found = [(set(one.variables), one.where) for one in secrets(profile) if one.name == name]
        named = tuple(f"n{rank}" for rank, these in enumerate(texts) if these)
        assert found == ([(set.union(*texts), named)] if named else [])


def test_diff_of_many_hosts_and_secrets_is_cheap() -> None:
    env = {f"V{number}": f"${{env:S{number}}}" for number in range(2000)}
    hosts = [f"n{number}" for number in range(500)]
    profile = parse(json.dumps({"disttui": 1, "hosts": hosts, "job": {"command": ["true"], "env": env}}), "p")
    with counted() as calls:
        assert "+ ${env:S7}: to all 500 hosts, as V7" in bounded(difference(None, profile))
    assert calls.number < 3_000_000  # measured: 1.4 million, in a third of a second
