"""Whatever the bytes are: a profile or an InputError, soon, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.errors import InputError
from disttui.runner.profile.effects import effect_lines
from disttui.runner.profile.library import list_profiles
from disttui.runner.profile.load import load, parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.resolve import SecretValues
from tests.counting import counted
from tests.files import new_file

SHIPPED = [entry.path.read_text() for entry in list_profiles() if entry.origin == "built in"]
# fmt: off
KEYS = [
    "disttui", "name", "hosts", "host", "user", "port", "num_processes", "gpus", "env", "python", "activate",
    "address", "interface", "workdir", "job", "builtin", "script", "module", "command", "args", "wrap", "sync",
    "container", "image", "runtime", "mounts",
    "launch", "launcher", "backend", "master", "ports", "grace", "restarts", "run_dir",
    "join_timeout", "instrument", "parallel", "strategy", "precision", "metrics", "pattern", "<<", "[key]",
    "on_end", "webhook", "name", "description", "log_limit", "rejoin_timeout", "preload",
]
WORDS = [
    "auto", "1", "0", "-1", "010", "1e9", "29500-29599", "local", "me@n:1", "[::1]:2", "bytegpt", "fsdp", "~", "~/x",
    "/x", "${env:A}", "${env:", "(?P<a>.)", "true", "10.0.0.1", "%", "*", "&", "!", "\t", "١", "9" * 5000,
    "..", "../../x", "a\u202eb", "\u2066", '"\\e[2J"', '"/x\\ny"', "http://[::1", "http://a:99999", "x" * 5000,
]
TOKENS = [
    *KEYS, *WORDS, ": ", "- ", "\n", "\n  ", "[", "]", "{", "}", ", ", "&a ", "*a", "!!str ", "|\n ", ">-\n ", '"', "'",
    "#", "? ", "---\n", "...\n", "%YAML 1.1\n", "\\x00", "\\ud800", "\\UFFFFFFFF", "\0", "\x85", "\ufeff",
]
# fmt: on

leaves = st.one_of(st.sampled_from(WORDS), st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.none())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=4)), inner)
    ),
    max_leaves=12,
)
sections = ["hosts", "job", "launch", "env", "parallel", "metrics", "on_end", "description", "activate"]


def survives(text: str, *overrides: str) -> None:
    """Either it is good, and then all that consumers ask for works, or every line of its error names a place."""
    try:
        profile = parse(text, "fuzz.yaml", overrides)
    except ProfileErrors as errors:
        assert errors.problems
        assert all(line.startswith(("fuzz.yaml:", "--set", "…")) for line in str(errors).splitlines())
        str(errors).encode()
        for problem in errors.problems:
            assert (problem.line == 0) == problem.source.startswith("--set")
            assert problem.line <= text.count("\n") + text.count("\r") + text.count("\x85") + len(text.splitlines()) + 1
        return
    json.dumps(profile.as_written())
    assert all(text.isprintable() for line in effect_lines(profile) for text in line)
    for rank in range(len(profile.hosts)):
        profile.host_env(rank)
        try:
            profile.split_env(rank, SecretValues({"A": "x"}).value)
        except InputError:
            pass


@given(data=st.binary(max_size=200))
def test_random_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = new_file(tmp_path_factory.getbasetemp() / "random.yaml", data)
    try:
        load(path)
    except InputError as error:
        str(error).encode()


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TOKENS), max_size=30).map("".join))
def test_random_tokens(text: str) -> None:
    survives(text)
    survives("disttui: 1\nhosts: [a]\njob: {script: x}\n" + text)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])  # on a machine that stalls
@given(st.fixed_dictionaries({"disttui": st.just(1)}, optional=dict.fromkeys(sections, trees)))
def test_random_structures(data: dict[str, object]) -> None:
    survives(yaml.dump({"hosts": ["n"], "job": {"script": "x"}, **data}))


@settings(max_examples=300)
@given(st.data())
def test_mutations_of_good_profiles(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SHIPPED))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 20))
        text = text[:start] + data.draw(st.sampled_from(["", *TOKENS])) + text[end:]
    survives(text)


@settings(max_examples=200)
@given(
    path=st.lists(st.one_of(st.sampled_from([*KEYS, "0", "1", "-1"]), st.text(max_size=4)), max_size=5).map(".".join),
    value=st.one_of(st.text(max_size=20), trees.map(lambda tree: yaml.dump(tree, default_flow_style=True))),
)
def test_random_overrides(path: str, value: str) -> None:
    survives(SHIPPED[0], f"{path}={value}")


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
JOB = "disttui: 1\nhosts: [a]\njob: {script: x}\n"
BOMBS = {
    "nested aliases": LAUGHS,
    "nested aliases of 10 MB": LAUGHS + "x: [" + "*i, " * 2_500_000 + "]\n",
    "a long text over and over": f"a: &a {'x' * 300_000}\nb: [*a, *a, *a, *a, *a, *a]\n",
    "aliases that nest": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100)),
    "brackets": "a: " + "[" * 1_000_000,
    "braces": "{a: " * 250_000,
    "question marks": "? " * 500_000,
    "dashes": "- " * 500_000,
    "items": "- a\n" * 250_000,
    "keys": "".join(f"k{number}: 1\n" for number in range(9_900)),
    "line breaks": "\n" * 1_000_000,
    "a quoted text without an end": "'" + "\n" * 1_000_000,
    "control characters": "\x01" * 1_000_000,
    "references": "- ${env:A}\n" * 9_000,
    "a pattern that is slow to compile": JOB + "metrics: {pattern: '(?i)(?P<loss>" + "[b-\uffff]" * 180 + ")'}",
    "hosts": "disttui: 1\njob: {script: x}\nhosts: [" + ",".join(f"h{number}" for number in range(9_000)) + "]",
    "a long argument": JOB.replace("x}", f"x, args: [{'a' * 1_000_000}]}}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_bombs_end(bomb: str) -> None:
    """What takes time in the square of their size, or more, would need hours: pytest's own limit ends it."""
    with pytest.raises(ProfileErrors):
        parse(bomb, "bomb.yaml")


def test_a_file_of_10_mb_of_nested_aliases(tmp_path: Path) -> None:
    path = new_file(tmp_path / "bomb.yaml", BOMBS["nested aliases of 10 MB"])
    with counted() as calls, pytest.raises(InputError, match=r"bomb\.yaml:1:1: larger than 1 MiB"):
        load(path)
    assert calls.number < 10_000
