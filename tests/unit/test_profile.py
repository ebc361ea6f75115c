"""What a good profile means: defaults, layers, overrides, references, and values that pass unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.address import Address
from disttui.runner.api.library import script_profile
from disttui.runner.errors import InputError
from disttui.runner.profile.library import list_profiles
from disttui.runner.profile.load import load, parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.resolve import SecretValues
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Slurm, Target
from tests.files import new_file, new_folder

GOOD = """\
disttui: 1
name: 2node
hosts:
  - node1
  - {host: me@node2:2222, num_processes: 2, gpus: [0, 1], env: {A: host, B: host}, python: ~/venv/bin/python,
     address: 10.0.0.2, interface: eth1, workdir: /data}
num_processes: 4
activate: conda activate x
env: {A: top, B: top, C: top, D: top}
job:
  builtin: bytegpt
  args: [--steps, 300, --lr, 3e-4]
  workdir: ~/project
  sync:
  env: {A: job, C: job, TOKEN: "${env:SECRET}"}
launch: {launcher: torchrun, backend: auto, master: auto, ports: 29500-29599, join_timeout: 60, restarts: 0,
         grace: 2.5, instrument: no, run_dir: auto}
parallel: {strategy: fsdp}
precision: auto
metrics: {pattern: null}
"""
SMALL = "disttui: 1\nhosts: [node1, node2]\njob: {script: train.py}\n"


def good(*overrides: str) -> Profile:
    return parse(GOOD, "good.yaml", overrides)


def job(text: str) -> Target:
    return parse(f"disttui: 1\nhosts: [local]\njob: {text}\n", "job.yaml").job.target


def hosts(text: str) -> list[tuple[str, Address]]:
    profile = parse(f"disttui: 1\njob: {{script: x}}\nhosts: {text}\n", "hosts.yaml")
    return [(host.name, host.endpoint) for host in profile.hosts]


def test_every_profile_that_comes_along_is_good() -> None:
    shipped = {entry.name: load(entry.path) for entry in list_profiles() if entry.origin == "built in"}
    assert {"local", "2node", "2node-fsdp", "2x8gpu"} <= set(shipped)
    for name, profile in shipped.items():
        assert profile.name == name
        assert profile.job.target.value == "bytegpt"
    assert shipped["local"].hosts[0].endpoint.is_local
    assert [host.num_processes for host in shipped["2node"].hosts] == [2, 2]
    assert shipped["2node-fsdp"].parallel.strategy == "fsdp"
    assert (shipped["2x8gpu"].launch.backend, shipped["2x8gpu"].precision) == ("nccl", "bf16")


def test_fields_mean_what_the_file_says() -> None:
    profile = good()
    node1, node2 = profile.hosts
    assert (node1.name, node1.endpoint) == ("node1", Address("node1"))
    assert (node1.num_processes, node1.python, node1.activate, node1.gpus) == (4, None, "conda activate x", None)
    assert (node2.name, node2.endpoint) == ("node2", Address("node2", "me", 2222))
    assert (node2.num_processes, node2.python, node2.gpus) == (2, "~/venv/bin/python", (0, 1))
    assert (node2.address, node2.interface) == ("10.0.0.2", "eth1")
    assert [profile.workdir(0), profile.workdir(1)] == ["~/project", "/data"]
    assert profile.job.target == Target("builtin", "bytegpt", ("--steps", "300", "--lr", "3e-4"))
    assert (profile.launch.ports, profile.launch.grace, profile.launch.instrument) == ((29500, 29599), 2.5, False)
    assert (profile.launch.master, profile.launch.run_dir) == (None, "~/.disttui/runs")


def test_what_is_not_written_has_a_default() -> None:
    profile = parse(SMALL, "somewhere/My Job.yaml")
    assert profile.name == "my-job"
    assert (profile.precision, profile.parallel.strategy, profile.launch.backend) == ("auto", "auto", "auto")
    assert (profile.launch.join_timeout, profile.launch.host_timeout, profile.launch.grace) == (60, 60, 10)
    assert profile.launch.rejoin_timeout == 0
    assert profile.hosts[0].num_processes is None
    assert profile.job.workdir == "~"


def test_a_host_may_undo_what_the_profile_says_for_all() -> None:
    text = "disttui: 1\njob: {script: x}\nnum_processes: 4\npython: /usr/bin/python3\nactivate: a\nhosts:\n"
    profile = parse(text + "  - {host: n, num_processes: auto, python: auto, activate: ''}\n", "x")
    assert (profile.hosts[0].num_processes, profile.hosts[0].python, profile.hosts[0].activate) == (None, None, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[local]", [("local", Address("local"))]),
        ("[no, on, 12]", [("no", Address("no")), ("on", Address("on")), ("12", Address("12"))]),
        ("['[::1]:22']", [("::1", Address("::1", None, 22))]),
        ("['me@[fe80::1%eth0]']", [("fe80::1%eth0", Address("fe80::1%eth0", "me"))]),
        ("['2001:db8::7']", [("2001:db8::7", Address("2001:db8::7"))]),
        ("[a@corp@n]", [("n", Address("n", "a@corp"))]),
        ("[n:1, n:2]", [("n:1", Address("n", None, 1)), ("n:2", Address("n", None, 2))]),
        ("[{host: n, name: left}, {host: n, user: u}]", [("left", Address("n")), ("u@n", Address("n", "u"))]),
        ("[{host: n, user: u, port: 7}]", [("n", Address("n", "u", 7))]),
    ],
)
def test_ways_to_write_a_host(text: str, expected: list[tuple[str, Address]]) -> None:
    assert hosts(text) == expected


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("{script: train.py, args: [no, 010, 12:30, 3.10, 1_000, 0x1f, '5', true, .5]}",
         Target("script", "train.py", ("no", "010", "12:30", "3.10", "1_000", "0x1f", "5", "true", ".5"))),
        ("{module: pkg.train}", Target("module", "pkg.train", ())),
        ("{command: [./train.sh, -x, 1]}", Target("command", "./train.sh", ("-x", "1"))),
    ],
)  # fmt: skip
def test_words_reach_the_job_as_they_are_written(text: str, target: Target) -> None:
    assert job(text) == target


@pytest.mark.parametrize(
    ("text", "ports"),
    [("29500", (29500, 29500)), ("4000-5000", (4000, 5000)), ("[4000, 5000]", (4000, 5000)), ("[7000]", (7000, 7000))],
)
def test_ways_to_write_ports(text: str, ports: tuple[int, int]) -> None:
    text = f"disttui: 1\nhosts: [local]\njob: {{script: x}}\nlaunch: {{ports: {text}}}\n"
    assert parse(text, "x").launch.ports == ports


def test_host_env_wins_over_job_env_over_profile_env() -> None:
    profile = good()
    assert profile.host_env(0) == {"A": "job", "B": "top", "C": "job", "D": "top", "TOKEN": "${env:SECRET}"}
    assert profile.host_env(1) == {"A": "host", "B": "host", "C": "job", "D": "top", "TOKEN": "${env:SECRET}"}


def test_numbers_and_flags_in_an_environment_stay_as_written() -> None:
    profile = parse(SMALL + "env: {A: 1, B: no, C: 010, D: 1e3, E: 3.10, F: True, G: '', H: 'null'}\n", "x")
    assert profile.host_env(0) == {
        "A": "1", "B": "no", "C": "010", "D": "1e3", "E": "3.10", "F": "True", "G": "", "H": "null",
    }  # fmt: skip


def test_a_secret_is_resolved_apart_and_never_written() -> None:
    plain, secret = good().split_env(0, SecretValues({"SECRET": "s3cr3t"}).value)
    assert secret == {"TOKEN": "s3cr3t"}
    assert plain == {"A": "job", "B": "top", "C": "job", "D": "top"}
    assert good().as_written()["job"]["env"]["TOKEN"] == "${env:SECRET}"


def test_references_inside_text_and_only_where_they_count() -> None:
    profile = parse(SMALL + "env: {A: 'Bearer ${env:X}:${env:Y} $HOME ${Z}', B: '${env:GONE}'}\n", "x", ["job.env.B=b"])
    assert profile.split_env(0, SecretValues({"X": "1", "Y": "${env:X}"}).value) == (
        {"B": "b"},
        {"A": "Bearer 1:${env:X} $HOME ${Z}"},
    )


def test_a_missing_secret_is_named_with_its_place() -> None:
    with pytest.raises(ProfileErrors) as caught:
        good().split_env(1, SecretValues({}).value)
    assert str(caught.value) == "good.yaml:15:33: the variable SECRET is not exported in this shell"
    with pytest.raises(ProfileErrors, match="SECRET is not UTF-8 text"):
        good().split_env(0, SecretValues({"SECRET": "\udc80"}).value)


def test_overrides() -> None:
    profile = good(
        "job.args=[--steps, 10]", "hosts.0.num_processes=8", "hosts.1.interface=eth2", "launch.restarts=2",
        "metrics.pattern='(?P<loss>.)'", "job.env.NEW=a=b", "name=", "precision=bf16",
    )  # fmt: skip
    assert profile.job.args == ("--steps", "10")
    assert [host.num_processes for host in profile.hosts] == [8, 2]
    assert (profile.launch.restarts, profile.metrics.pattern) == (2, "(?P<loss>.)")
    assert (profile.host_env(0)["NEW"], profile.name, profile.precision) == ("a=b", "good", "bf16")
    assert profile.as_written()["hosts"][0] == {"host": "node1", "num_processes": 8}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--lr", "1", "x"], ["--lr", "5", "x"]),
        (["--lr=1", "x"], ["--lr=5", "x"]),
        (["--steps", "9"], ["--steps", "9", "--lr", "5"]),
        (["--lr", "--steps", "9"], ["--lr", "5", "--steps", "9"]),  # a flag takes no word from the option behind it
        (["--lr", "1", "--lr", "2"], ["--lr", "1", "--lr", "5"]),  # the last one counts
        (["--lr", "-1"], ["--lr", "5"]),
        (["--lr", "-.5"], ["--lr", "5"]),
        (["--lr", "-x", "1"], ["--lr", "5", "-x", "1"]),
        (["--lr"], ["--lr", "5"]),
        ([], ["--lr", "5"]),
    ],
)
def test_set_changes_one_option_of_the_job(before: list[str], after: list[str]) -> None:
    assert good(f"job.args={json.dumps(before)}", "job.args.lr=5").job.args == tuple(after)


@pytest.mark.parametrize("text", ["null", "~", "#x", ""])
def test_set_passes_an_argument_as_it_is(text: str) -> None:
    assert good("job.args=[]", f"job.args.lr={text}").job.args == ("--lr", text)


def test_set_takes_dotted_options_and_indices() -> None:
    args = ["job.args=[--model.lr, 1, x]", "job.args.model.lr=2", "job.args.2=y"]
    assert good(*args).job.args == ("--model.lr", "2", "y")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("job.args.lr=[1]", "--set job.args.lr=…: not a single value, expected text, in quotes if it looks like"),
        ("job.argz=[1]", "--set job.argz=…: unknown key 'argz', did you mean 'args'?"),
        ("slurm.node=2", "--set slurm.node=…: unknown key 'node', did you mean 'nodes'?"),
        ("lunch.grace=1", "--set lunch.grace=…: unknown key 'lunch', did you mean 'launch'?"),
        ("launch.grace=x", "--set launch.grace=…: grace: 'x', expected seconds, from 0 to 604800 (a week)"),
        ("hosts.2=x", "--set hosts.2=…: '2' is not an index, expected 0 to 1"),
        ("hosts.first=x", "--set hosts.first=…: 'first' is not an index, expected 0 to 1"),
        ("name.x=1", "--set name.x=…: 'x' cannot be set inside the single value '2node'"),
        ("job.args=[", "--set job.args=…: not valid YAML: while parsing a flow node, expected the node content, "
                       "but found '<stream end>'"),
        ("job.args=[!!python/none x]", "--set job.args=…: the tag 'tag:yaml.org,2002:python/none' is not allowed, "
                                       "quote the value to make it text"),
        ("job.args=['a\0']", "--set job.args=…: a NUL byte, expected text"),
        ("job.args", "--set job.args: expected KEY=VALUE, like job.args=[--steps, 10] or hosts"),
        ("a..b=1", "--set a..b=…: expected KEY=VALUE, like job.args=[--steps, 10] or hosts"),
        ("=1", "--set =…: expected KEY=VALUE, like job.args=[--steps, 10] or hosts"),
        (".".join("a" * 40) + "=1", f"--set {'.'.join('a' * 40)}=…: nested deeper than 32 levels"),
        ("disttui=2", "--set disttui=…: written by a newer disttui: schema 2, this one reads 1, upgrade disttui"),
    ],
)  # fmt: skip
def test_bad_overrides(override: str, message: str) -> None:
    with pytest.raises(ProfileErrors) as caught:
        good(override)
    assert str(caught.value).startswith(message)


def test_as_written_reads_back_as_the_same_profile() -> None:
    for profile in (good(), good("hosts.0.num_processes=8"), *(load(entry.path) for entry in list_profiles())):
        again = parse(json.dumps(profile.as_written()), f"{profile.name}.yaml")
        assert again.model_dump() == profile.model_dump()
        assert again.as_written() == profile.as_written()


# Everything but NUL and lone surrogates, which no argument can hold.
hostile = st.one_of(
    st.sampled_from(["$(reboot)", "`id`", "'\"\\", "a\nb\n", "\x1b[2J", "\x9b0m", "\u202e", "null", "~", "no", "", " ",
                     "${HOME}", "-n", "*", "&a", "!x", "# no comment", "😀", "\ufeff", "\u2028", "\r\n", "\x85", "\t"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
).filter(lambda text: "${env:" not in text)  # fmt: skip


@given(words=st.lists(hostile, max_size=4), value=hostile)
def test_hostile_values_pass_unchanged(words: list[str], value: str) -> None:
    data = {
        "disttui": 1,
        "hosts": [{"host": "n", "env": {"V": value}}],
        "job": {"script": "./" + value, "args": words, "wrap": words},
        "activate": value,
    }
    for text in (yaml.safe_dump(data), json.dumps(data).replace("\x7f", "\\u007f")):
        profile = parse(text, "hostile.yaml")
        assert profile.job.target == Target("script", "./" + value, tuple(words))
        assert profile.job.wrap == tuple(words)
        assert (profile.host_env(0), profile.hosts[0].activate) == ({"V": value}, value)
        assert parse(yaml.safe_dump(profile.as_written()), "hostile.yaml").model_dump() == profile.model_dump()


def test_a_file_with_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = new_file(tmp_path / "win.yaml", b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load(path).name == "win"
    path.write_bytes(b"\xef\xbb\xbf" + (SMALL + "nme: x\n").replace("\n", "\r\n").encode())
    with pytest.raises(InputError, match=r"win\.yaml:4:1: unknown key 'nme', did you mean 'name'"):
        load(path)


def test_a_kept_profile_means_the_same_files_anywhere(tmp_path: Path) -> None:
    text = (
        "{disttui: 1, hosts: [a, b], job: {script: x.py, sync: {exclude: [y]}, environment: req.txt}, "
        "data: [{from: t.bin, to: ~/t}, {from: ~/u, to: ~/u}, {from: 'a:/v', to: ~/v}, {from: 's3://b/w', to: ~/w}]}"
    )
    profile = parse(text, tmp_path / "p.yaml")
    found = profile.rooted(profile.as_written())
    assert found["job"]["sync"] == {"exclude": ["y"], "from": str(tmp_path)}
    assert found["job"]["environment"] == f"{tmp_path}/req.txt"
    assert [one["from"] for one in found["data"]] == [f"{tmp_path}/t.bin", "~/u", "a:/v", "s3://b/w"]
    assert (
        parse(json.dumps(found), "other").sync_source == tmp_path and "from" not in profile.as_written()["job"]["sync"]
    )


@pytest.mark.parametrize("option", ["--gpus=8", "--gpus-per-task=1", "--gres=gpu:a100:4", "--gres=tmp:1,gpu:2"])
def test_gpus_may_be_asked_for_by_options_of_slurm(option: str) -> None:
    assert Slurm(options=(option,)).asks_gpus
    assert not Slurm(options=("--gpu-bind=none", "--gres=tmp:1")).asks_gpus


def test_script_becomes_a_profile_that_sends_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "src").mkdir(parents=True)
    script = new_file(tmp_path / "project" / "src" / "train it.py")
    for here, folder, name in (
        (tmp_path / "project", tmp_path / "project", "src/train it.py"),
        (tmp_path / "project" / "src", tmp_path / "project" / "src", "train it.py"),
        (Path("/"), script.parent, "train it.py"),
        (tmp_path, script.parent, "train it.py"),
    ):
        monkeypatch.chdir(here)
        monkeypatch.setenv("HOME", str(tmp_path))
        made = script_profile(script, ["box1", "alice@box2"], ["--lr", "1e-3"], ("job.args.seed=3",))
        assert (made.name, made.job.script) == ("train-it", name)
        assert list(made.job.args) == ["--lr", "1e-3", "--seed", "3"]
        assert made.sync_source == folder.resolve()
        assert [host.label() for host in made.hosts] == ["box1", "alice@box2"]
    (tmp_path / "train.py").touch()
    made = script_profile(tmp_path / "train.py", ["box1"])
    assert (made.sync_source, made.job.script) == ((tmp_path / "train.py").resolve(), "train.py"), "not the whole home"
    gone = new_folder(tmp_path / "gone")
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert script_profile(script, ["box1"]).sync_source == script.parent.resolve()
