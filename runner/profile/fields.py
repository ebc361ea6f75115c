"""The kinds of values a profile holds: each takes the text as written and says in one line what it expected."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from runner.profile import addresses, numbers
from runner.profile.numbers import whole
from runner.profile.problems import bad, near, quoted
from runner.profile.references import broken
from runner.protocol.limits import MOST_RANKS
from runner.protocol.names import RUN_DIR
from runner.text import UNSAFE

MOST_PROCESSES = MOST_RANKS
"""Of one host."""
_RUN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"~?/[A-Za-z0-9._/~+-]+|[A-Za-z0-9_][A-Za-z0-9._+-]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

LONGEST_WORD = 100_000
"""Bytes of one argument or variable: Linux refuses a program that is given one of 131,072."""
_LONGEST_PATH = 4_000
"""Bytes: Linux takes paths of 4,095."""

_WIDE_RANGE = re.compile(r"-(?:[^\x00-\x7f]|\\[uUxN])")
_MOST_WIDE_RANGES = 8
"""Without regard to case, Python compiles a range such as [a-\\uffff] character by character, for 0.04 s."""

_OWN_VARIABLES = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
}
_INSTEAD = {
    "MASTER_ADDR": "choose it by launch.master",
    "MASTER_PORT": "choose it by launch.ports",
    "LOCAL_WORLD_SIZE": "choose it by num_processes",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "choose it by launch.grace",
}


def one_of(*known: str, later: tuple[str, ...] = ()) -> BeforeValidator:
    """A word of a fixed set; the words of `later` are refused as not built yet."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value in known:
            return value
        if value in later:
            raise bad(f"{quoted(value)} is not built yet", f"expected {' or '.join(known)}")
        meant = near(value, known)
        raise bad(quoted(value), f"did you mean {meant!r}?" if meant else f"expected {' or '.join(known)}")

    return BeforeValidator(check)


def not_built(instead: str) -> BeforeValidator:
    """A key that is refused, with what to do instead."""

    def check(value: Any) -> None:
        if value:
            raise bad("disttui cannot do this yet", f"remove it; {instead}")

    return BeforeValidator(check)


def few(most: int) -> AfterValidator:
    """A list of at most `most` entries."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(value) > most:
            raise bad(f"{len(value):,} entries", f"expected at most {most:,}")
        return value

    return AfterValidator(check)


def slug(text: str) -> str:
    """The run name nearest to `text`."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).lstrip("._-")[:40].rstrip("._-") or "run"


def _flag(value: Any) -> Any:
    if isinstance(value, str):
        word = value.lower()
        if word not in ("true", "false", "yes", "no", "on", "off"):
            raise bad(quoted(value), "expected true or false")
        return word in ("true", "yes", "on")
    return value


def _matches(pattern: re.Pattern[str], expected: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise bad(quoted(value), expected)
        return value

    return check


_python = _matches(_PYTHON, "expected a name, an absolute path or ~/…, of A-Z a-z 0-9 . _ / ~ + - only")
_interface = _matches(_INTERFACE, "expected the name of a network interface, like eth0")
_module = _matches(_MODULE, "expected a module, like package.train")


def _once(value: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if value and len(set(value)) < len(value):
        raise bad("a GPU is listed twice", "expected each once")
    return value


def _run_name(value: str) -> str:
    if not _RUN_NAME.fullmatch(value):
        raise bad(
            f"{quoted(value)} is no name for a run (a-z 0-9 . _ -, at most 40, a letter or digit first)",
            f"try {slug(value)!r}",
        )
    return value


def _visible(*, most: int, lines: bool = False) -> AfterValidator:
    """Text that looks like what it is: no control, bidi or invisible characters.

    Args:
        most: Bytes of UTF-8.
        lines: Whether there may be several lines.
    """

    def check(value: str) -> str:
        if found := UNSAFE.search(value.replace("\n", "") if lines else value):
            what = "a line break" if found[0] == "\n" else f"the character {quoted(found[0])}, which cannot be seen"
            raise bad(f"{quoted(value)} holds {what}", "remove it")
        return _fits(value, most)

    return AfterValidator(check)


def _short(most: int) -> AfterValidator:
    return AfterValidator(lambda value: _fits(value, most))


def _fits(value: str, most: int) -> str:
    if len(value) * 4 > most and (size := len(value.encode())) > most:
        raise bad(f"{size:,} bytes", f"expected at most {most:,}")
    return value


def _folder(value: str) -> str:
    if not re.match(r"/|~[^/]*(/|\Z)", value):
        raise bad(quoted(value), "expected an absolute path or one that starts with ~/")
    return value


def _below(value: str) -> str:
    parts = value.rstrip("/").split("/")
    if not value or value.startswith(("/", "~")) or any(part in ("", ".", "..") for part in parts):
        raise bad(quoted(value), "expected a folder or a file below workdir, like out/")
    return "/".join(parts)


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise bad(f"{quoted(value)} is no name for a variable", "expected letters, digits and _, no digit first")
    if value == "CUDA_VISIBLE_DEVICES":
        raise bad("CUDA_VISIBLE_DEVICES is set from the GPUs of the host", "choose them by gpus: [0, 1]")
    if value in _OWN_VARIABLES or value.startswith(("DISTTUI_", "TORCHELASTIC_")):
        raise bad(f"{quoted(value)} is set by disttui for every rank", _INSTEAD.get(value, "remove it"))
    return value


def _env_value(value: str) -> str:
    if expected := broken(value):
        raise bad(f"{quoted(value)} holds a broken reference", expected)
    return value


def _pattern(value: str) -> str:
    if len(value) > 1000:
        raise bad(f"a pattern of {len(value):,} characters", "expected at most 1,000")
    if len(_WIDE_RANGE.findall(value)) > _MOST_WIDE_RANGES:
        raise bad(f"{quoted(value)} has many ranges beyond ASCII", f"expected at most {_MOST_WIDE_RANGES}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            groups = re.compile(value).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise bad(f"{quoted(value)} is no regular expression: {error}") from None
    if not groups:
        raise bad(f"{quoted(value)} names no metric", "expected named groups, like loss=(?P<loss>[0-9.]+)")
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or not re.fullmatch(r"[!-~]+", value):
        raise bad(quoted(value), "expected http://… or https://…")
    return value


def _filled(value: str) -> str:
    if not value:
        raise bad("empty text", "expected some")
    return value


def _auto(value: Any) -> Any:
    return None if value == "auto" else value


Text = Annotated[str, StringConstraints(strict=True)]
Prose = Annotated[Text, _visible(most=10_000, lines=True)]
Word = Annotated[Text, _short(LONGEST_WORD)]
"""An argument or a line for a shell: may hold any character that a process accepts, and is shown escaped."""
LogSize = Annotated[int | None, BeforeValidator(numbers.log_size)]
Script = Annotated[Text, AfterValidator(_filled), _short(_LONGEST_PATH)]
Url = Annotated[Text, AfterValidator(_url), _short(_LONGEST_PATH)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Seconds = Annotated[float, BeforeValidator(numbers.seconds)]
SomeSeconds = Annotated[Seconds, AfterValidator(numbers.some_seconds)]
RunName = Annotated[Text, AfterValidator(_run_name)]
EnvName = Annotated[Text, AfterValidator(_env_name), _short(255)]
EnvValue = Annotated[Word, AfterValidator(_env_value)]
HostText = Annotated[Text, AfterValidator(addresses.whole_host)]
HostName = Annotated[Text, AfterValidator(addresses.host_part)]
User = Annotated[Text, AfterValidator(addresses.user_part)]
Port = Annotated[int, BeforeValidator(lambda value: numbers.port_number(value, 1))]
Processes = Annotated[int | None, whole(1, MOST_PROCESSES, auto=True)]
Size = Annotated[int | None, whole(1, 65536, auto=True)]
Gpus = Annotated[tuple[Annotated[int, whole(0, 1023)], ...] | None, AfterValidator(_once), BeforeValidator(_auto)]
Quota = Annotated[int, whole(1, 1024)]
Python = Annotated[Annotated[Text, AfterValidator(_python), _short(_LONGEST_PATH)] | None, BeforeValidator(_auto)]
Ip = Annotated[Annotated[Text, AfterValidator(addresses.ip)] | None, BeforeValidator(_auto)]
Interface = Annotated[Annotated[Text, AfterValidator(_interface)] | None, BeforeValidator(_auto)]
Folder = Annotated[Text, AfterValidator(_folder), _visible(most=_LONGEST_PATH)]
Below = Annotated[Text, AfterValidator(_below), _visible(most=_LONGEST_PATH)]
Pattern = Annotated[Text, AfterValidator(_pattern)]
Module = Annotated[Text, AfterValidator(_module), _short(255)]
Ports = Annotated[tuple[int, int], BeforeValidator(numbers.ports)]
AutoText = Annotated[Text | None, BeforeValidator(_auto)]
RunDir = Annotated[Folder, BeforeValidator(lambda value: RUN_DIR if value == "auto" else value)]
