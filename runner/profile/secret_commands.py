"""`secret_commands` of the user's config: the only commands that a `${cmd:…}` of a profile may name."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from runner.user_config import command_words, config_file

_LARGEST = 1024 * 1024


def allowed(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the config allows a command: the same words, where a word that ends in `*` stands for what begins so."""
    return any(_fits(words, pattern) for pattern in _patterns(config_file(environ)))


def _fits(words: Sequence[str], known: Sequence[str]) -> bool:
    return len(words) == len(known) and all(map(_word_fits, words, known))


def _word_fits(word: str, known: str) -> bool:
    if not known.endswith("*"):
        return word == known
    return word.startswith(known[:-1]) and ".." not in word.split("/")


def _patterns(path: Path) -> list[list[str]]:
    """The entries of a config that nobody but this user and root can write; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return []
            data = yaml.safe_load(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return []
    entries = data.get("secret_commands") if isinstance(data, dict) else None
    found = [command_words(entry) for entry in entries] if isinstance(entries, list) else []
    return [words for words in found if words]
