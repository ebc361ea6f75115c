"""Detects values of a profile that look like secrets: shared or stored files must not contain them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, compose, walk
from disttui.runner.profile.problems import Path, ProfileErrors, ProfileProblem, SourceLocation, quoted
from disttui.runner.profile.references import references
from disttui.runner.text import masking

_TOKENS = (
    ("a Hugging Face token", r"hf_[A-Za-z0-9]{20,}"),
    ("a GitHub token", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    ("a GitLab token", r"glpat-[A-Za-z0-9_-]{20,}"),
    ("an API key", r"sk-[A-Za-z0-9_-]{20,}"),
    ("an AWS access key", r"(?:AKIA|ASIA)[A-Z0-9]{16}"),
    ("a Google API key", r"AIza[A-Za-z0-9_-]{35}"),
    ("a Slack token", r"xox[abeprs]-[A-Za-z0-9-]{10,}"),
    ("a token of a package registry", r"(?:npm_|pypi-)[A-Za-z0-9_-]{30,}"),
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
)
_KNOWN = [(what, re.compile(rf"(?<![A-Za-z0-9_])(?:{shape})")) for what, shape in _TOKENS]
_LOGIN = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:([^\s/@]{6,})@")
_WANDB = re.compile(r"(?<![A-Za-z0-9])[0-9a-f]{40}(?![A-Za-z0-9])")
_SECRET_KEY = re.compile(
    r"(?:^|[_.-])(?:api_?key|access_?key|key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?)(?:[_.-]|$)", re.I
)
_PASSWORD_KEY = re.compile(r"passw(?:or)?d|passphrase|pwd", re.I)
_SPLIT = re.compile(r"(?<=[a-z])(?=[A-Z])")
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.S)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(\S.*)", re.S)
_LONG, _LONG_PASSWORD = 12, 8
"""Characters that a value needs to count as random."""
_RANDOM, _RANDOM_PASSWORD = 3.0, 2.5
"""Shannon entropy in bits per character; random letters and digits of these lengths have more."""


class Leak(NamedTuple):
    """A value that looks like a secret."""

    path: Path
    place: SourceLocation
    what: str
    """What it looks like, as in "a GitHub token"."""
    value: str


def leaks(root: Node) -> Iterator[Leak]:
    """Yield every value that looks like a secret, and mask it from now on."""
    for leak in found_in(root):
        masking.suspect(leak.value)
        yield leak


def found_in(root: Node) -> Iterator[Leak]:
    """Yield every value that looks like a secret, without masking it."""
    before: tuple[Path, str] = ((), "")
    for path, scalar in walk(root):
        # The word after `--token` in a list of arguments.
        option = before[1] if before[0][:-1] == path[:-1] and path and isinstance(path[-1], int) else ""
        if found := _looks_like(scalar.text, _name(path), option):
            what, value = found
            yield Leak(path, scalar.place, what, value)
        name = _OPTION.fullmatch(scalar.text)
        before = (path, name[1] if name and name[2] is None else "")


def in_data(data: Mapping[str, object]) -> list[Leak]:
    """The likely secrets in a profile's data, without source locations and without masking them."""
    with suppress(ProfileErrors):
        if root := compose(json.dumps(data), "profile", [], in_file=False):
            return list(found_in(root))
    return []


def mask(data: Mapping[str, object]) -> list[ProfileProblem]:
    """Mask the likely secrets in a profile's data; return them as problems, without source locations.

    Each problem has a cure and never the value.
    """
    found = in_data(data)
    for leak in found:
        masking.suspect(leak.value)
    return list(map(_problem, found))


def _problem(leak: Leak) -> ProfileProblem:
    return ProfileProblem.at(leak.place, f"{quoted('.'.join(map(str, leak.path)))} looks like {leak.what}", _cure(leak))


def without_leaks(args: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a job with likely secrets masked."""
    shown = list(args)
    for leak in in_data({"job": {"args": shown}}):
        shown[int(leak.path[-1])] = shown[int(leak.path[-1])].replace(leak.value, masking.MASK)
    return tuple(shown)


def refuse(text: str, source: str) -> None:
    """Raise ProfileErrors for a text with values that look like secrets, or with a known token anywhere.

    Does not mask them in later output: a user who reads the profile must see all that it runs.
    """
    inside: list[Leak] = []
    with suppress(ProfileErrors):
        if root := compose(text, source, []):
            inside = list(found_in(root))
    if found := [*map(_problem, inside), *_beside_values(text, source, [leak.value for leak in inside])]:
        raise ProfileErrors(found)


def _beside_values(text: str, source: str, values: Sequence[str]) -> Iterator[ProfileProblem]:
    """Yield known tokens outside `values`: in comments, in keys and in text that is not YAML."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, shape in _KNOWN:
            token = shape.search(line)
            if token and not any(token[0] in value for value in values):
                yield ProfileProblem(number, token.start() + 1, f"this looks like {what}", "remove it", source)


def without_tokens(text: str) -> str:
    """The text with all tokens of known kinds masked."""
    for _, shape in _KNOWN:
        text = shape.sub(masking.MASK, text)
    return text


def hidden(word: str) -> str:
    """A command-line word with likely secrets masked, such as the value in `--set env.TOKEN=…`."""
    key, _, value = word.partition("=")
    if key.startswith("--") and "=" in value:
        hidden(value)  # of `--set=env.TOKEN=…`
    found = [*found_in(ScalarNode(SourceLocation(""), word))]
    with suppress(ProfileErrors):
        if node := compose(value, "", [], in_file=False):
            found += found_in(MappingNode(node.place, {key.rpartition(".")[2]: (node.place, node)}))
    for leak in found:
        masking.suspect(leak.value)
    return masking.masked(word)


def _name(path: Path) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def _looks_like(text: str, key: str, option: str) -> tuple[str, str] | None:
    """The kind of secret that a value looks like and the secret part of it; None for a harmless value."""
    for what, shape in _KNOWN:
        if found := shape.search(text):
            return what, found[0] if found[0][0] != "-" else text
    if (login := _LOGIN.search(text)) and not references(login[1]):
        return "an address with a password", login[1]
    given = _OPTION.fullmatch(text) or _ASSIGNED.fullmatch(text)
    names = [name for name in (key, option, given[1] if given else "") if name]
    value = given[2] if given and given[2] else text
    if any("wandb" in name.lower() for name in names) and (found := _WANDB.search(value)):
        return "a wandb API key", found[0]
    secret = [name for name in names if _SECRET_KEY.search(_SPLIT.sub("_", name))]
    if secret and not references(value) and _is_random(value, password=any(map(_PASSWORD_KEY.search, secret))):
        return "a secret", value
    return None


def _is_random(value: str, *, password: bool) -> bool:
    """Whether a value is too random for a word, number or path that a person would give a harmless key."""
    long, random = (_LONG_PASSWORD, _RANDOM_PASSWORD) if password else (_LONG, _RANDOM)
    if len(value) < long or re.search(r"\s", value) or value.startswith(("/", "~", "./", "$")):
        return False
    mixed = bool(re.search("[0-9]", value) and re.search("[A-Za-z]", value))
    return (mixed or password) and _entropy(value) >= random


def _entropy(text: str) -> float:
    """Shannon entropy of the first 1,000 characters, in bits per character."""
    counts = Counter(text[:1000]).values()
    return -sum(count / sum(counts) * math.log2(count / sum(counts)) for count in counts)


def _cure(leak: Leak) -> str:
    if "env" in leak.path:
        name = leak.path[-1]
        return f"export it in your shell and write ${{env:{name}}}, or write ${{file:~/PATH}} for your own file"
    if leak.path[:1] == ("on_end",):
        return "remove it: on_end.command can read it from a file"
    if leak.path[:1] == ("notify",):
        return "write ${env:NAME} or ${file:~/PATH} instead"
    return "remove it: let the job read a variable of `env` set to ${env:NAME}"
