"""What DeepSpeed itself would refuse in the configuration that a job hands to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from runner import private
from runner.planning.interop.from_deepspeed import values
from runner.profile import Profile, ProfileErrors
from runner.profile.nodes import MappingNode, ScalarNode, compose
from runner.text import clean

_OPTION = "--deepspeed_config"
"""The option of DeepSpeed's own argument parser; Trainer's is --deepspeed, and it fills in what is `auto`."""
_LARGEST = 1024 * 1024


class Auto(NamedTuple):
    """A key whose value is left open, as safe text."""

    line: int
    key: str


def config_of(profile: Profile) -> tuple[str | None, Path] | None:
    """The host with the configuration and its path, where this machine can read it; None as host: a copy is here."""
    words = profile.job.target.args
    given = (_given(word, after) for word, after in zip(words, (*words[1:], ""), strict=False))
    name = next(filter(None, given), "")
    if profile.launch.launcher != "deepspeed" or not name:
        return None
    for rank, host in enumerate(profile.hosts):
        if host.endpoint.is_local:
            return host.name, Path(os.path.expanduser(profile.workdir(rank))) / os.path.expanduser(name)  # noqa: PTH111
    return None if name.startswith(("/", "~")) else (None, Path(name))


def _given(word: str, after: str) -> str:
    option, equals, value = word.partition("=")
    if option.replace("-", "_") != _OPTION.replace("-", "_"):
        return ""
    return value if equals else after


def autos(path: Path) -> Sequence[Auto]:
    """The keys with `auto`; none where the file cannot be read or is no configuration."""
    try:
        text = private.read(path, _LARGEST)[0].decode("utf-8-sig")
        root = compose(text.expandtabs(2), str(path), [])
    except (OSError, ValueError, ProfileErrors, private.NoRegularFileError):
        return ()
    if not isinstance(root, MappingNode):
        return ()
    found = values(root, "")
    return [Auto(line, clean(key)) for line, key, node in found if isinstance(node, ScalarNode) and node.text == "auto"]
