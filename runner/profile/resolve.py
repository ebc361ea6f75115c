"""Resolves references from this user's environment, files and commands. Values are masked in all later output.

They go only to the ranks' environment and to notification addresses: no message contains them.
"""

from __future__ import annotations

import os
import selectors
import shlex
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from disttui.runner import private
from disttui.runner.profile.problems import printable
from disttui.runner.profile.references import Reference, UnresolvedError, references
from disttui.runner.text import clean, masking
from disttui.runner.user.config import command_words, config_file

_LARGEST = 1024 * 1024


def refusal(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Why the user's config does not allow a command, with the cure; empty if it does.

    Allowed are commands with the words of an entry of `secret_commands`, where `*` at a word's end matches any rest.
    """
    path = config_file(environ)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_LARGEST)
    except (OSError, ValueError):
        status, data = None, b""
    shown = printable(str(path))
    if status and status.st_uid not in (0, os.geteuid()):
        return f"cannot be allowed: {shown} belongs to another user, so its secret_commands are ignored"
    if status and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"cannot be allowed: others can write {shown}, so its secret_commands are ignored; chmod 600 it"
    if any(len(words) == len(known) and all(map(_word_fits, words, known)) for known in _patterns(data)):
        return ""
    words_to_add = printable(shlex.join(words))
    return f"is not among your secret_commands; if you trust it, allow it in {shown}: secret_commands: [{words_to_add}]"


def _word_fits(word: str, known: str) -> bool:
    if not known.endswith("*"):
        return word == known
    return word.startswith(known[:-1]) and ".." not in word.split("/")


def _patterns(text: bytes) -> list[list[str]]:
    """The `secret_commands` of a config, each as words; empty if it is not valid YAML."""
    try:
        data = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return []
    entries = data.get("secret_commands") if isinstance(data, dict) else None
    found = [command_words(entry) for entry in entries] if isinstance(entries, list) else []
    return [words for words in found if words]


LONGEST = 64 * 1024
"""Most bytes of a value."""
PATIENCE = 60.0
"""Seconds that a command may take: it may ask for a PIN."""
_PLAIN = frozenset((
    "HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "OLDPWD", "LANG", "LANGUAGE", "TZ", "TERM", "HOSTNAME", "TMPDIR",
    "EDITOR", "DISPLAY",
))  # fmt: skip
"""Variables that are never secret: their values occur in all kinds of output, so they are not masked."""


class SecretValues:
    """Resolves references. Each command runs only once; its output is cached for the lifetime of this object.

    Args:
        environ: Variables for `${env:NAME}`, HOME and the folder of the user's config.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._outputs: dict[Reference, str] = {}
        self._lock = threading.Lock()

    def value(self, reference: Reference) -> str:
        """Return the value of a reference; runs an allowed command. Raises UnresolvedError."""
        if reference.kind != "cmd":
            return self.check(reference)
        self.check(reference)
        with self._lock:
            if reference not in self._outputs:
                self._outputs[reference] = _output(reference)
            found = self._outputs[reference]
        masking.learn(found)
        return found

    def check(self, reference: Reference) -> str:
        """Return the value, or "" for an allowed command, without running it. Raises UnresolvedError."""
        if reference.kind == "env":
            found = _variable(reference.name, self._environ)
            if reference.name not in _PLAIN and not _is_path(found):
                masking.learn(found)
            return found
        if reference.kind == "file":
            found = _file(reference.name, self._environ)
            masking.learn(found)
            return found
        if why := refusal(reference.words, self._environ):
            raise UnresolvedError(f"the command {printable(reference.name)!r} {why}")
        return ""

    def know(self, texts: Iterable[str], *, files: bool = True) -> None:
        """Mask the values of all references in `texts` that can be resolved without running a command.

        Args:
            files: Whether to read files; must be false for texts that another user has written.
        """
        for text in texts:
            for reference in references(text) if "${" in text else ():
                if reference.kind == "env" or (reference.kind == "file" and files):
                    try:
                        self.check(reference)
                    except UnresolvedError:
                        continue


def _variable(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if value is None:
        raise UnresolvedError(f"the variable {name} is not exported in this shell")
    if not _is_text(value):
        raise UnresolvedError(f"the variable {name} is not UTF-8 text")
    return value


def _is_text(value: str) -> bool:
    return value.isascii() or value.encode("utf-8", "replace").decode() == value


def _is_path(value: str) -> bool:
    try:
        return value.startswith(("/", "~/")) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111
    except ValueError:
        return False


def _file(name: str, environ: Mapping[str, str]) -> str:
    """The text of a file that only this user can access, as ssh requires of keys. Raises UnresolvedError."""
    shown = f"the file {printable(name)}"
    home = environ.get("HOME", "")
    path = Path(home, name[2:]) if name.startswith("~/") and home else Path(name)
    try:
        data, status = private.read(path, LONGEST + 1)
    except private.NoRegularFileError:
        raise UnresolvedError(f"{shown} is not a regular file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a path"
        raise UnresolvedError(f"{shown} cannot be read: {why}") from None
    if status.st_uid != os.geteuid():
        raise UnresolvedError(f"{shown} belongs to another user; copy it to your own file")
    if status.st_mode & 0o077:
        raise UnresolvedError(f"others can read or write {shown}; chmod 600 it first")
    return _usable(data, shown)


def _usable(data: bytes, shown: str) -> str:
    """Decode a value for use in a variable, without trailing line breaks. Raises UnresolvedError."""
    if len(data) > LONGEST:
        raise UnresolvedError(f"{shown} has more than {LONGEST // 1024} KiB, too much for a secret")
    try:
        found = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UnresolvedError(f"{shown} is not UTF-8 text") from None
    if not found:
        raise UnresolvedError(f"{shown} is empty")
    if "\0" in found:
        raise UnresolvedError(f"{shown} contains a NUL character, which variables cannot contain")
    return found


def _output(reference: Reference) -> str:
    shown = f"the command {printable(reference.name)!r}"
    try:
        # No new session, since a PIN prompt needs the terminal. Its errors may contain secrets, so they are discarded.
        child = subprocess.Popen(
            reference.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "cannot be split into a command"
        raise UnresolvedError(f"{shown} cannot be started: {clean(why)}") from None
    with child:
        data = _read(child, shown)
    if child.returncode and len(data) <= LONGEST:
        raise UnresolvedError(f"{shown} ended with exit code {child.returncode}; run it to see why")
    return _usable(data, shown)


def _read(child: subprocess.Popen[bytes], shown: str) -> bytes:
    """Read a command's whole output, or stop over the limit of a value. Raises UnresolvedError on timeouts."""
    assert child.stdout is not None
    data, deadline = b"", time.monotonic() + PATIENCE
    waiting = selectors.DefaultSelector()
    waiting.register(child.stdout, selectors.EVENT_READ)
    try:
        while len(data) <= LONGEST:
            if not waiting.select(max(0.0, deadline - time.monotonic())):
                raise UnresolvedError(f"{shown} did not answer in {PATIENCE:.0f} s and was ended")
            piece = os.read(child.stdout.fileno(), LONGEST + 1)
            if not piece:
                child.wait(max(1.0, deadline - time.monotonic()))
                break
            data += piece
    except subprocess.TimeoutExpired:
        raise UnresolvedError(f"{shown} did not end in {PATIENCE:.0f} s and was ended") from None
    finally:
        waiting.close()
        if child.poll() is None:
            child.kill()
    return data
