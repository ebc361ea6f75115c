"""The types of values in a profile: each validates the text as written and reports in one line what it expected."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

from disttui.runner.errors import near
from disttui.runner.profile.problems import bad, quoted
from disttui.runner.profile.references import broken, references
from disttui.runner.protocol.limits import MOST_RANKS
from disttui.runner.protocol.names import RUN_DIR
from disttui.runner.text import UNSAFE

# Excludes what OpenSSH refuses in names, since a ProxyCommand passes them to a shell, and what separates address parts.
_UNFIT = re.compile(r"[^\w.:%+=~^-]")
# ssh accepts brackets as well; here they mean a list of nodes.
_UNFIT_ALIAS = re.compile(r"[^\w.:%+=~^/#!*?-]")
_ALIKE = ("ARMENIAN ", "CHEROKEE ", "CYRILLIC ", "FULLWIDTH ", "GREEK ", "MATHEMATICAL ")
"""Prefixes of the Unicode names of letters that resemble ASCII letters."""
_HOST_EXPECTED = "expected an ssh alias, user@host:port or local"


def host_part(text: str, unfit: re.Pattern[str] = _UNFIT) -> str:
    """Check a host or user name: nothing in it may have a meaning for ssh or a shell. Raises PydanticCustomError."""
    if not text:
        raise bad("an empty name", _HOST_EXPECTED)
    if text.startswith("-"):
        raise bad(f"{quoted(text)} begins with '-', like an option of ssh", _HOST_EXPECTED)
    if not text.strip("."):
        raise bad(f"{quoted(text)} is not a valid name", _HOST_EXPECTED)  # it would be a folder such as ..
    if found := unfit.search(text):
        raise bad(f"{quoted(text)} contains {quoted(found[0])}", _HOST_EXPECTED)
    if (at := _foreign_letter(text)) is not None:
        raise bad(
            f"character {at + 1} of {quoted(text)} is {unicodedata.name(text[at])}, among ASCII letters",
            "expected letters of one alphabet, since many look alike",
        )
    if len(text) > 255:
        raise bad(f"{quoted(text)} is longer than 255 characters", _HOST_EXPECTED)
    return text


def _foreign_letter(text: str) -> int | None:
    """Index of the first letter that resembles an ASCII letter, in a name that also has ASCII letters; else None."""
    if text.isascii() or not re.search("[a-zA-Z]", text):
        return None
    names = (unicodedata.name(letter, "") for letter in text)
    return next((at for at, name in enumerate(names) if name.startswith(_ALIKE)), None)


def user_part(text: str) -> str:
    """Check a login name, which may contain an @ (user@domain) or a backslash (DOMAIN\\user)."""
    host_part(re.sub(r"@|(?<=\w)\\(?=\w)", ".", text))
    return text


def split_host(text: str) -> tuple[str | None, str, int | None]:
    """Split `user@host:port`, `user@[v6]:port`, an alias or a bare IPv6 address into user, host and port."""
    if text.startswith("ssh://"):
        raise bad(f"{quoted(text)} begins with ssh://", "expected user@host:port without it")
    user, at, rest = text.rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        host, bracket, after = rest[1:].partition("]")
        if not bracket or not _is_v6(host) or not (after == "" or after.startswith(":")):
            raise bad(f"{quoted(text)} is not a valid address", "expected [IPv6 address]:port")
        port = after[1:] if after else None
    elif set(rest) & set("[]") and not _UNFIT_ALIAS.search(re.sub(r"[\[\],]", "", rest)):
        what = f"{quoted(text)} has brackets, as in a list of hosts"
        raise bad(what, "expected each host by its name")
    elif rest.count(":") > 1:
        host = rest
        if not _is_v6(host):
            raise bad(f"{quoted(text)} has too many colons", "expected host:port, or [IPv6 address]:port")
    else:
        host, colon, after = rest.partition(":")
        port = after if colon else None
    return (
        user_part(user) if at else None,
        host_part(host, _UNFIT_ALIAS),
        None if port is None else port_number(port, 1),
    )


def is_ip(text: str) -> bool:
    """Whether `text` is the IP address of one machine."""
    try:
        return bool(ip(text))
    except PydanticCustomError:
        return False


def _is_v6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def ip(value: str) -> str:
    """Check the IP address of one machine; unspecified and multicast ones are refused."""
    host_part(value)
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise bad(quoted(value), "expected an IP address") from None
    if address.is_unspecified or address.is_multicast:
        raise bad(f"{value} is not the address of a machine", "expected an IP address")
    return value


def _integer(value: Any, low: int, high: int, expected: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"[+-]?0[0-9]+", text):
        raise bad(f"{quoted(text)} begins with 0, which YAML may read as octal", f"write {int(text[:18])}")
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise bad(quoted(value), expected)
    return int(text)


def port_number(value: Any, low: int) -> Any:
    """Convert the text of a port from `low` to 65535 to a number."""
    return _integer(value, low, 65535, f"expected a port from {low} to 65535")


def whole(low: int, high: int, *, auto: bool = False) -> BeforeValidator:
    """Validate a whole number from `low` to `high`; `auto` becomes None."""
    expected = f"expected a whole number from {low} to {high:,}" + (" or auto" if auto else "")
    return BeforeValidator(lambda value: None if auto and value == "auto" else _integer(value, low, high, expected))


def number(low: float, high: float) -> BeforeValidator:
    """Validate a number from `low` to `high`."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            if not re.fullmatch(r"[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?", value):
                raise bad(quoted(value), f"expected a number from {low:g} to {high:g}")
            value = float(value)
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise bad(f"{value:g}", f"expected a number from {low:g} to {high:g}")
        return value

    return BeforeValidator(check)


def seconds(value: Any) -> Any:
    """Convert text to seconds, a week at most."""
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", value) or float(value) > 604_800:
            raise bad(quoted(value), "expected seconds, from 0 to 604800 (a week)")
        return float(value)
    return value


def span(text: str) -> float | None:
    """Convert `90s`, `10m`, `1.5h`, `3d` or `2w` to seconds; None for anything else."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw])", text)
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}[found[2]] if found else None


def size(text: str) -> int | None:
    """Convert `500MB`, `500M` or `1.5GiB` to bytes; None for anything else."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([kmgt])(i?)b?", text.lower())
    return int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "kmgt".index(found[2]))) if found else None


def log_size(value: Any) -> Any:
    """Convert a size of at least 1 MiB to bytes; `none` becomes None."""
    if not isinstance(value, str):
        return value
    found = size(value)
    if value != "none" and (found is None or found < 2**20):
        raise bad(quoted(value), "expected none or a size like 2GiB, 1MiB at least")
    return found


def file_size(value: Any) -> Any:
    """Convert `500MB` or `1.5GiB` to bytes. Raises PydanticCustomError for anything else."""
    if not isinstance(value, str):
        return value
    found = size(value)
    if found is None:
        raise bad(quoted(value), "expected a size like 500MB")
    return found


def some_seconds(value: float) -> float:
    """Refuse 0 seconds."""
    if value <= 0:
        raise bad("0 seconds", "expected more than 0")
    return value


def ports(value: Any) -> Any:
    """Convert one port, `first-last` or [first, last] to [first, last]."""
    shown = quoted(value) if isinstance(value, str) else "this"
    if isinstance(value, str):
        value = value.split("-")
    if not isinstance(value, list):
        return value
    try:
        numbers = [port_number(text.strip() if isinstance(text, str) else "", 1024) for text in value]
    except PydanticCustomError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or numbers[0] > numbers[-1]:
        expected = "expected a port from 1024 to 65535, or a range, like 29500-29599"
        raise bad(f"{shown} is not a range of ports", expected)
    return [numbers[0], numbers[-1]]


MOST_PROCESSES = MOST_RANKS
"""Most processes of one host."""
_RUN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# All other characters are literal between single quotes in every login shell.
_PYTHON = re.compile(r"~?/[^'\"!$`\\]+|[A-Za-z0-9_][A-Za-z0-9._+-]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

LONGEST_WORD = 100_000
"""Bytes of one argument or variable; Linux refuses to start a program with one of 131,072."""
_LONGEST_PATH = 4_000
"""Bytes of a path; Linux accepts 4,095."""

_WIDE_RANGE = re.compile(r"-(?:[^\x00-\x7f]|\\[uUxN])")
_MOST_WIDE_RANGES = 8
"""Limit since Python, ignoring case, compiles a range such as [a-\\uffff] by character, in 0.04 s."""

OWN_VARIABLES = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
}
_INSTEAD = {
    "MASTER_ADDR": "choose it by launch.master",
    "MASTER_PORT": "choose it by launch.ports",
    "LOCAL_WORLD_SIZE": "choose it by num_processes",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "choose it by launch.grace",
}


def one_of(*known: str) -> BeforeValidator:
    """Validate a word of a fixed set."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value in known:
            return value
        meant = near(value, known)
        raise bad(quoted(value), f"did you mean {meant!r}?" if meant else f"expected {' or '.join(known)}")

    return BeforeValidator(check)


def few(most: int) -> AfterValidator:
    """Validate that a list has at most `most` entries."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(value) > most:
            raise bad(f"{len(value):,} entries", f"expected at most {most:,}")
        return value

    return AfterValidator(check)


def slug(text: str) -> str:
    """Turn `text` into a valid run name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).lstrip("._-")[:40].rstrip("._-") or "run"


def _flag(value: Any) -> Any:
    if isinstance(value, str):
        word = value.lower()
        if word not in ("true", "false", "yes", "no", "on", "off"):
            raise bad(quoted(value), "expected true or false")
        return word in ("true", "yes", "on")
    return value


def matches(pattern: re.Pattern[str], expected: str) -> Callable[[str], str]:
    """Return a check that text matches `pattern` in full."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise bad(quoted(value), expected)
        return value

    return check


_python = matches(_PYTHON, "expected a name, an absolute path or ~/…, without ' \" ! $ ` \\")
_interface = matches(_INTERFACE, "expected the name of a network interface, like eth0")
_module = matches(_MODULE, "expected a module, like package.train")


def _once(value: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if value and len(set(value)) < len(value):
        raise bad("a GPU is listed twice", "expected each once")
    return value


def _run_name(value: str) -> str:
    if not _RUN_NAME.fullmatch(value):
        raise bad(
            f"{quoted(value)} is not a valid profile name (a-z 0-9 . _ -, at most 40, a letter or digit first)",
            f"try {slug(value)!r}",
        )
    return value


def _visible(*, most: int, lines: bool = False) -> AfterValidator:
    """Validate text that is what it looks like: without control, bidi or invisible characters.

    Args:
        most: Most bytes as UTF-8.
        lines: Whether line breaks are allowed.
    """

    def check(value: str) -> str:
        if found := UNSAFE.search(value.replace("\n", "") if lines else value):
            what = "a line break" if found[0] == "\n" else f"the invisible character {quoted(found[0])}"
            raise bad(f"{quoted(value)} contains {what}", "remove it")
        return _fits(value, most)

    return AfterValidator(check)


def _short(most: int) -> AfterValidator:
    return AfterValidator(lambda value: _fits(value, most))


def _fits(value: str, most: int) -> str:
    if len(value) * 4 > most and (size := len(value.encode())) > most:
        raise bad(f"{size:,} bytes", f"expected at most {most:,}")
    return value


_folder = matches(re.compile(r"(/|~[^/]*(/|\Z)).*", re.DOTALL), "expected an absolute path or one that starts with ~/")


def _below(value: str) -> str:
    parts = value.rstrip("/").split("/")
    if not value or value.startswith(("/", "~")) or any(part in ("", ".", "..") for part in parts):
        raise bad(quoted(value), "expected a folder or a file below workdir, like out/")
    return "/".join(parts)


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise bad(f"{quoted(value)} is not a valid variable name", "expected letters, digits and _, no digit first")
    if value == "CUDA_VISIBLE_DEVICES":
        raise bad("CUDA_VISIBLE_DEVICES is set from the GPUs of the host", "choose them by gpus: [0, 1]")
    if value in OWN_VARIABLES or value.startswith(("DISTTUI_", "TORCHELASTIC_")):
        raise bad(f"{quoted(value)} is set by disttui for every rank", _INSTEAD.get(value, "remove it"))
    return value


def _env_value(value: str) -> str:
    if expected := broken(value):
        raise bad(f"{quoted(value)} contains a broken reference", expected)
    return value


def _expression(value: str) -> str:
    if len(value) > 1000:
        raise bad(f"a pattern of {len(value):,} characters", "expected at most 1,000")
    if len(_WIDE_RANGE.findall(value)) > _MOST_WIDE_RANGES:
        raise bad(f"{quoted(value)} has many ranges beyond ASCII", f"expected at most {_MOST_WIDE_RANGES}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise bad(f"{quoted(value)} is not a valid regular expression: {error}") from None
    return value


def _pattern(value: str) -> str:
    if not re.compile(value).groupindex:
        raise bad(f"{quoted(value)} names no metric", "expected named groups, like loss=(?P<loss>[0-9.]+)")
    return value


def check_url(value: str) -> str:
    """Check a web address. Raises PydanticCustomError."""
    return _check_address(value, ("http", "https"), "", "expected http://… or https://…")


def check_mail(value: str) -> str:
    """Check the address of a mail server with a recipient. Raises PydanticCustomError."""
    expected = "expected smtps://me:${env:PASSWORD}@mail.example.org/me@example.org"
    return _check_address(value, ("smtp", "smtps"), "@", expected)


def _check_address(value: str, schemes: tuple[str, ...], in_path: str, expected: str) -> str:
    try:
        parts = urlsplit(value)
        known = parts.scheme in schemes and parts.hostname and parts.port != 0 and in_path in parts.path
    except ValueError:
        known = False
    if not known or not re.fullmatch(r"[!-~]+", value):
        raise bad(quoted(value), expected)
    return value


def _addressed(check: Callable[[str], str]) -> AfterValidator:
    """Validate an address; one with references is checked again when they are resolved, at the start."""
    return AfterValidator(lambda value: _env_value(value) if references(value) or broken(value) else check(value))


def _filled(expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if not value:
            raise bad("empty text", expected)
        return value

    return AfterValidator(check)


def _auto(value: Any) -> Any:
    return None if value == "auto" else value


Text = Annotated[str, StringConstraints(strict=True)]
Prose = Annotated[Text, _visible(most=10_000, lines=True)]
Word = Annotated[Text, _short(LONGEST_WORD)]
"""An argument or shell line: any characters that a process accepts; shown escaped."""
LogSize = Annotated[int | None, BeforeValidator(log_size)]
Script = Annotated[Text, _filled("expected some"), _short(_LONGEST_PATH)]
Url = Annotated[Text, AfterValidator(check_url), _short(_LONGEST_PATH)]
Address = Annotated[Text, _addressed(check_url), _short(_LONGEST_PATH)]
MailAddress = Annotated[Text, _addressed(check_mail), _short(_LONGEST_PATH)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Seconds = Annotated[float, BeforeValidator(seconds)]
Number = Annotated[float, number(-1e15, 1e15)]
Positive = Annotated[float, number(0.1, 1e9)]
Percent = Annotated[float, number(1, 99)]
MetricName = Annotated[Text, _visible(most=100)]
SomeSeconds = Annotated[Seconds, AfterValidator(some_seconds)]
RunName = Annotated[Text, AfterValidator(_run_name)]
EnvName = Annotated[Text, AfterValidator(_env_name), _short(255)]
EnvValue = Annotated[Word, AfterValidator(_env_value)]
HostText = Annotated[Text, AfterValidator(lambda text: split_host(text) and text)]
HostName = Annotated[Text, AfterValidator(host_part)]
User = Annotated[Text, AfterValidator(user_part)]
Transport = Annotated[Literal["builtin", "ssh"], one_of("builtin", "ssh")]
Port = Annotated[int, BeforeValidator(lambda value: port_number(value, 1))]
Processes = Annotated[int | None, whole(1, MOST_PROCESSES, auto=True)]
Size = Annotated[int | None, whole(1, 65536, auto=True)]
Gpus = Annotated[tuple[Annotated[int, whole(0, 1023)], ...] | None, AfterValidator(_once), BeforeValidator(_auto)]
Quota = Annotated[int, whole(1, 1024)]
Python = Annotated[Annotated[Text, AfterValidator(_python), _short(_LONGEST_PATH)] | None, BeforeValidator(_auto)]
Ip = Annotated[Annotated[Text, AfterValidator(ip)] | None, BeforeValidator(_auto)]
Interface = Annotated[Annotated[Text, AfterValidator(_interface)] | None, BeforeValidator(_auto)]
Folder = Annotated[Text, AfterValidator(_folder), _visible(most=_LONGEST_PATH)]
LocalFolder = Annotated[Text, _filled("expected a local folder, like ."), _visible(most=_LONGEST_PATH)]
FileSize = Annotated[int, BeforeValidator(file_size)]
Below = Annotated[Text, AfterValidator(_below), _visible(most=_LONGEST_PATH)]
Expression = Annotated[Text, AfterValidator(_expression)]
Pattern = Annotated[Expression, AfterValidator(_pattern)]
Module = Annotated[Text, AfterValidator(_module), _short(255)]
Ports = Annotated[tuple[int, int], BeforeValidator(ports)]
AutoText = Annotated[Text | None, BeforeValidator(_auto)]
RunDir = Annotated[Folder, BeforeValidator(lambda value: RUN_DIR if value == "auto" else value)]
