"""A profile holds references; their values reach the ranks' environment, and are masked in all that is printed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner.errors import InputError
from disttui.runner.planning.by_hand import shell_command
from disttui.runner.profile.effects import effect_lines
from disttui.runner.profile.leaks import found_in, hidden, refuse
from disttui.runner.profile.load import parse
from disttui.runner.profile.nodes import ScalarNode
from disttui.runner.profile.problems import ProfileErrors, SourceLocation
from disttui.runner.profile.resolve import LONGEST, SecretValues
from disttui.runner.profile.save import save
from disttui.runner.render.plan import render_plan
from disttui.runner.text import LineMaker, clean, masking, quote
from tests.command import ran
from tests.files import new_file
from tests.unit.planning import facts, planned

SECRET = 'pa$$w"ord\\of-the-house-ß'
HF = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7" + "yZ"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    masking.forget_all()
    yield
    masking.forget_all()


def profile(value: str) -> str:
    return f"disttui: 1\nhosts: [a, b]\njob: {{command: [x], env: {{TOKEN: {json.dumps(value)}}}}}\n"


def resolved(value: str, **environ: str) -> str:
    return parse(profile(value), "p.yaml").split_env(0, SecretValues(environ).value)[1]["TOKEN"]


def refused(value: str, **environ: str) -> str:
    with pytest.raises(ProfileErrors) as caught:
        resolved(value, **environ)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    new_file(tmp_path / ".token", SECRET + "\n", 0o600)
    (tmp_path / "disttui").mkdir()
    return tmp_path


def allow(home: Path, *lines: str) -> dict[str, str]:
    config = home / "disttui" / "config.yaml"
    config.write_text("secret_commands:\n" + "".join(f"  - {line}\n" for line in lines))
    config.chmod(0o600)
    return {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}


def test_a_secret_comes_from_a_file_of_the_user_alone(home: Path) -> None:
    token = home / ".token"
    assert resolved("Bearer ${file:~/.token}", HOME=str(home)) == f"Bearer {SECRET}"
    assert resolved(f"${{file:{token}}}") == SECRET
    token.chmod(0o640)
    assert "others can read or write the file ~/.token; chmod 600 it first" in refused(
        "${file:~/.token}", HOME=str(home)
    )
    token.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(token, 12345, 12345)
        assert "belongs to another user" in refused(f"${{file:{token}}}")
        os.chown(token, 0, 0)
    token.write_bytes(b"x" * (LONGEST + 1))
    assert "more than 64 KiB" in refused(f"${{file:{token}}}")
    for data, what in ((b"\xff\xfe", "not UTF-8 text"), (b"\n", "is empty"), (b"a\0b", "NUL")):
        token.write_bytes(data)
        assert what in refused(f"${{file:{token}}}")
    token.unlink()
    assert refused(f"${{file:{token}}}").endswith("cannot be read: No such file or directory")
    os.mkfifo(token, 0o600)
    assert "is not a regular file" in refused(f"${{file:{token}}}")


def test_a_command_runs_only_where_the_users_config_allows_it(home: Path) -> None:
    ran = home / "ran"
    words = f"sh -c 'echo once >> {ran}; echo {'x' * 20}'"
    assert "is not among your secret_commands" in refused(f"${{cmd:{words}}}", XDG_CONFIG_HOME=str(home))
    assert not ran.exists()
    environ = allow(home, json.dumps(["sh", "-c", f"echo once >> {ran}; echo {'x' * 20}"]), "cat ml/*")
    values = SecretValues(environ)
    read = parse(profile(f"${{cmd:{words}}}"), "p.yaml")
    for rank in (0, 1, 0):
        assert read.split_env(rank, values.value)[1] == {"TOKEN": "x" * 20}
    assert ran.read_text() == "once\n", "a command asks for a PIN once, not for each host"
    for other in ("sh -c true", "cat ml/a ml/b", "cat ml/../.token", "cat other", words + " x"):
        assert "secret_commands" in refused(f"${{cmd:{other}}}", **environ)
    (home / "disttui" / "config.yaml").chmod(0o666)
    why = refused(f"${{cmd:{words}}}", **environ)  # everybody could allow commands in it
    assert f"others can write {home}/disttui/config.yaml, so its secret_commands are ignored; chmod 600 it" in why


def test_what_a_command_prints_is_never_part_of_an_error(home: Path) -> None:
    script = new_file(home / "say", f"#!/bin/sh\necho '{SECRET}' >&2\necho '{SECRET}'\nexit 3\n", 0o755)
    environ = allow(home, str(script), "/no/such/program")
    assert "ended with exit code 3; run it to see why" in refused(f"${{cmd:{script}}}", **environ)
    assert "cannot be started: No such file" in refused("${cmd:/no/such/program}", **environ)
    script.write_text("#!/bin/sh\nyes\n")
    assert "more than 64 KiB" in refused(f"${{cmd:{script}}}", **environ)


@pytest.mark.parametrize("value", ["${file:token}", "${file:}", "${cmd:}", "${cmd:a 'b}", "${env:1}", "${cmd:a"])
def test_a_broken_reference_is_refused(value: str) -> None:
    with pytest.raises(ProfileErrors, match=r"p.yaml:3:34: .*broken reference, expected \$\{(env|file|cmd):"):
        parse(profile(value), "p.yaml")


def test_references_outside_env_fail_but_shell_syntax_passes() -> None:
    text = "disttui: 1\nhosts: [a]\njob: {command: [sh, -c, 'echo ${cmd:-x} ${file:?} ${env}']}\n"
    parse(text, "p.yaml")
    with pytest.raises(ProfileErrors, match=r"3:31: a \$\{file:…\} reference in 'job.command.2'"):
        parse(text.replace("${cmd:-x}", "${file:~/x}"), "p.yaml")


def test_a_known_secret_is_masked_however_it_is_written() -> None:
    assert resolved("${env:S}", S=SECRET) == SECRET
    for text in (SECRET, json.dumps({"a": SECRET}), json.dumps(SECRET, ensure_ascii=False), repr(SECRET)):
        assert "of-the-house" not in masking.masked(text)
    assert clean(f"\x1b[31mkey {SECRET}!") == "key ***!"
    maker = LineMaker(colours=True)
    lines = maker.feed(f"a {SECRET} b\nßß {SECRET}\n\x1b[31m{SECRET}\r\n".encode())
    assert "house" not in str(lines) and lines[0] == "a *** b"
    assert resolved("${env:S}", S="first line of it\nsecond line of it") and clean("x second line of it") == "x ***"


def test_many_suspected_values_do_not_evict_a_real_secret() -> None:
    masking.learn(SECRET)
    for number in range(1100):
        masking.suspect(f"{number:04}" + "x" * 60)
    assert "house" not in masking.masked(SECRET)
    assert masking.masked("1099" + "x" * 60) == "***" and masking.masked("0000" + "x" * 60) != "***"


def test_quoting_does_not_depend_on_known_secrets() -> None:
    masking.learn("plain-word")
    assert quote("plain-word") == "plain-word" and clean("plain-word") == "***"


@pytest.mark.parametrize(("name", "value"), [("HOME", "/home/ada-lovelace"), ("DATA", "/usr/bin"), ("STEPS", "300")])
def test_what_is_no_secret_stays_readable(name: str, value: str) -> None:
    assert resolved(f"${{env:{name}}}", **{name: value}) == value
    assert clean(f"at {value}/x") == f"at {value}/x"


LEAKS = [
    ("env: {A: %s}", HF, "a Hugging Face token"),
    ("env: {A: 'x %s'}", "ghp_" + "a1B2" * 9, "a GitHub token"),
    ("env: {A: %s}", "github_pat_" + "a1B2_" * 6, "a GitHub token"),
    ("env: {A: %s}", "sk-ant-" + "a1-B2" * 6, "an API key"),
    ("env: {A: %s}", "AKIA" + "A1B2" * 4, "an AWS access key"),
    ("env: {WANDB_API_KEY: %s}", "0123456789abcdef0123456789abcdef01234567", "a wandb API key"),
    ("env: {MY_TOKEN: %s}", "q8Zx0Lm3Vt7R", "a secret"),
    ("env: {dbPassword: %s}", "hunter2hunter3", "a secret"),
    ("env: {A: 'https://me:%s@example.org'}", "s3cret-word", "an address with a password"),
    ("job: {command: [x, --api-key, %s]}", "q8Zx0Lm3Vt7R", "a secret"),
    ("job: {command: [x, --token=%s]}", "q8Zx0Lm3Vt7R", "a secret"),
]


@pytest.mark.parametrize(("line", "value", "what"), LEAKS)
def test_what_looks_like_a_secret_is_not_saved(tmp_path: Path, line: str, value: str, what: str) -> None:
    text = f"disttui: 1\n{line % value}\n"
    with pytest.raises(InputError) as caught:
        save(text, tmp_path / "p.yaml", replace=False)
    said = str(caught.value)
    assert f"{tmp_path}/p.yaml:2:" in said and what in said and value not in said
    assert "${env:" in said, "the cure"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("text", [f"disttui: 1\n  # was {HF}\n", f"a: 1\n{HF}: x\n", f"Notes: no YAML\n\t{{ {HF}\n"])
def test_a_token_is_not_saved_in_a_comment_a_key_or_other_text(text: str) -> None:
    with pytest.raises(InputError, match=r"notes:2:\d+: .*looks like a Hugging Face token") as caught:
        refuse(text, "notes")
    assert HF not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "env: {TOKENIZERS_PARALLELISM: 'false', MONKEY: abcdefghij0123456789, TOKEN_LIMIT: '123456789012'}",
        "env: {HF_TOKEN: '${env:HF_TOKEN}', API_KEY: '${file:~/.key}', KEY_FILE: /home/ada/.keys/a1b2c3d4e5}",
        "env: {COMMIT: 0123456789abcdef0123456789abcdef01234567, SORT_KEY: validation_loss_mean}",
        "job: {command: [x, --tokenizer, meta-llama/Llama-3.1-8B, --token-dim=1024, --task-sk-learn]}",
    ],
)
def test_harmless_values_are_saved(tmp_path: Path, line: str) -> None:
    save(f"disttui: 1\n{line}\n", tmp_path / "p.yaml", replace=False)


def test_a_secret_that_is_written_out_is_warned_of_and_masked() -> None:
    it = planned(facts("cpu_desk"), job={"command": ["true"], "env": {"HF_TOKEN": HF}})
    text = render_plan(it.plan, it.recommendation, it.findings)
    assert "'job.env.HF_TOKEN' looks like a Hugging Face token: stored with the run" in text
    assert "Export it in your shell and write ${env:HF_TOKEN}" in text and HF not in masking.masked(text)


@pytest.mark.parametrize("text", ["a" * 2_000_000, "a-" * 500_000, "-----BEGIN " * 100_000])
def test_a_long_value_is_looked_through_once(text: str) -> None:
    """Expressions that begin anew at each character would take hours."""
    assert not [*found_in(ScalarNode(SourceLocation(""), text))]


def test_a_command_line_is_kept_without_its_secrets() -> None:
    assert hidden("job.env.MY_TOKEN=q8Zx0Lm3Vt7R") == "job.env.MY_TOKEN=***"
    assert hidden(f"job.args=[{HF}]") == "job.args=[***]"
    assert hidden("job.args=[--token, Zx8q0Lm3Vt7R]") == "job.args=[--token, ***]"
    masking.forget_all()
    assert hidden("--set=job.env.MY_TOKEN=q8Zx0Lm3Vt7R") == "--set=job.env.MY_TOKEN=***"
    assert hidden("launch.restarts=2") == "launch.restarts=2"


def test_scripts_put_no_secret_into_process_arguments(tmp_path: Path) -> None:
    env = {"A": "Bearer ${env:TOKEN}", "B": "${file:~/.token}", "C": "${cmd:pass x}${cmd:pass y}", "D": "plain"}
    it = planned(facts("cpu_desk"), job={"command": ["true"], "env": env})
    command = shell_command(it.plan, it.plan.hosts[0])
    new_file(tmp_path / "env", '#!/bin/sh\necho "words $*"\necho "A=$A B=$B C=$C"\n', 0o755)
    given = {"TOKEN": "s3cret", "B": "s3cret-b", "C": "s3cret-c", "C_2": "2", "HOME": str(tmp_path)}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = ran(["sh", "-c", f"cd() {{ :; }}; {command}"], env={**given, **path}, check=True)
    said, values = done.stdout.splitlines()
    assert "s3cret" not in said and "D=plain" in said and values == "A=Bearer s3cret B=s3cret-b C=s3cret-c2"
    before, _, words = command.partition(" && env ")
    assert "TOKEN" not in words and "D=plain" in words
    assert "export A='Bearer '\"${TOKEN:?}\" && " in before and 'export B="${B:?}" && ' in before
    assert before.endswith('export C="${C:?}""${C_2:?}"')


def test_effects_list_the_destination_of_every_secret_kind() -> None:
    text = profile("${env:A}${file:~/.t}${cmd:pass show 'x y'}")
    assert [line for line in effect_lines(parse(text, "p")) if line[0].startswith("$")] == [
        ("${env:A}", "to a, b, as TOKEN"),
        ("${file:~/.t}", "to a, b, as TOKEN"),
        ("${cmd:pass show 'x y'}", "to a, b, as TOKEN"),
    ]
