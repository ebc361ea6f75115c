"""Settings of a host in the user's ssh configuration, as ssh itself resolves them, and the hosts named in its files.

paramiko's parser is not used: it does not support Include, and keeps comments and quotes in values.
"""

from __future__ import annotations

import errno
import getpass
import os
import pwd
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha1
from pathlib import Path

from disttui.runner.address import Address
from disttui.runner.errors import HostError, InputError
from disttui.runner.text import clean, quote
from disttui.runner.transport.algorithms import LEAST_RSA_BITS

_SYSTEM = Path("/etc/ssh")
_DEPTH = 16
_FILES = 256
_LARGEST = 1024 * 1024
"""Most bytes of a file."""
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.*)")


class NamedHosts:
    """The host names in the ssh configuration: those on `Host` lines without wildcards; `Include` is followed."""

    def __init__(self, config_file: str | None) -> None:
        """Read the files that ssh reads with this -F; None: the user's and the system's files."""
        self.hosts: dict[str, str] = {}
        """Name → HostName from its own block, or ""."""
        self.problems: list[str] = []
        self._files = 0
        home = ssh_home() / ".ssh"
        if config_file is not None:
            self._read(Path(config_file), home, 0, wanted=True)
        else:
            self._read(home / "config", home, 0)
            self._read(_SYSTEM / "ssh_config", _SYSTEM, 0)

    def _read(self, file: Path, folder: Path, depth: int, *, wanted: bool = False) -> None:
        """Read a file; its includes are relative to `folder`. A missing file is a problem only if `wanted`."""
        self._files += 1
        names: list[str] = []
        for number, keyword, value in self._statements(file, wanted):
            try:
                if keyword in ("host", "match"):
                    names = [] if keyword == "match" else _names(split(value))
                    self.hosts.update({name: "" for name in names if name not in self.hosts})
                elif keyword == "hostname" and (words := split(value)):
                    addresses = {name: expand(_readable(words[0]), {"%": "%", "h": name}) for name in names}
                    self.hosts.update({name: text for name, text in addresses.items() if not self.hosts[name]})
                elif keyword == "include":
                    for included in _included(split(value), folder):
                        if depth >= _DEPTH or self._files >= _FILES:
                            raise ValueError(f"more than {_FILES} files, or {_DEPTH} that include each other")
                        self._read(included, folder, depth + 1)
            except ValueError as error:
                if keyword != "hostname":
                    self.problems.append(f"{clean(f'{file}:{number}')}: {error}")

    def _statements(self, file: Path, wanted: bool) -> Iterator[tuple[int, str, str]]:
        """Yield (line number, keyword in lower case, value) of every statement of a file."""
        if not wanted and not file.is_file():
            return
        try:
            with file.open("rb") as opened:
                data = opened.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise OSError(errno.EFBIG, "larger than 1 MiB")
        except OSError as error:
            self.problems.append(f"{clean(str(file))}: {error.strerror or 'cannot be read'}")
            return
        for number, line in enumerate(data.decode(errors="surrogateescape").splitlines(), 1):
            match = _LINE.fullmatch(line.strip())
            if match:  # else the line is blank or a comment
                yield number, match[1].lower(), match[2]


def _names(words: list[str]) -> list[str]:
    """The names on a Host line, without patterns and without names that it negates."""
    denied = {word[1:] for word in words if word.startswith("!")}
    patterns = [word.replace("[", "[[]") for word in denied if set(word) & set("*?")]
    names = [word for word in words if not word.startswith("!") and not set(word) & set("*?")]
    kept = (name for name in names if name not in denied)
    return [_readable(name) for name in kept if not any(fnmatchcase(name, pattern) for pattern in patterns)]


def _readable(word: str) -> str:
    """Replace bytes that are not UTF-8 with U+FFFD."""
    return word.encode(errors="surrogateescape").decode(errors="replace")


def split(text: str) -> list[str]:
    """Split a value into words as ssh does (misc.c, argv_split). Raises ValueError for an unclosed quote.

    Unlike in a shell, `CORP\\alice` keeps its backslash; # begins a comment only at the start of a word.
    """
    words: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        if text[at] == "#":
            break
        word, quote = "", ""
        while at < len(text) and (quote or text[at] not in " \t"):
            char, after = text[at], text[at + 1 : at + 2]
            if char == "\\" and (after in ("'", '"', "\\") or (after == " " and not quote)):
                word += after
                at += 1
            elif char == quote:
                quote = ""
            elif not quote and char in "'\"":
                quote = char
            else:
                word += char
            at += 1
        if quote:
            raise ValueError("No closing quotation")
        words.append(word)
    return words


def _included(words: list[str], folder: Path) -> Iterator[Path]:
    for word in words:
        try:
            pattern = folder / in_home(word)
            yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
        except (RuntimeError, ValueError, OSError, NotImplementedError):
            continue  # a user or a pattern that does not exist


def ssh_home() -> Path:
    """The home folder that ssh uses: the account's, regardless of HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()  # a user without an account, as in containers


def in_home(path: str) -> Path:
    """Expand `~` and `~user` in a path as ssh does. Raises RuntimeError for an unknown user."""
    if path == "~" or path.startswith("~/"):
        return ssh_home() / path[2:]
    return Path(path).expanduser()


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Expand ssh_config's %-tokens; unknown ones stay."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def expand_path(text: str, tokens: Mapping[str, str]) -> str:
    """Expand `~`, ${VARIABLES} and %-tokens."""
    text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), text)
    return str(in_home(expand(text, tokens)))


def host_tokens(name: str, hostname: str, port: str, user: str, alias: str | None, jump: str) -> dict[str, str]:
    """The %-tokens of ssh_config(5) for one host."""
    local = socket.gethostname()
    return {
        "%": "%",
        "C": sha1(f"{local}{hostname}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest(),
        "d": str(ssh_home()),
        "h": hostname,
        "i": str(os.getuid()),
        "j": jump,
        "k": alias or name,
        "L": local.partition(".")[0],
        "l": local,
        "n": name,
        "p": port,
        "r": user,
        "u": getpass.getuser(),
    }


Settings = Mapping[str, Sequence[str]]
"""Keyword in lower case → its values, as printed by `ssh -G`."""

_LIMIT = 20.0
"""Seconds that `ssh -G` may take, since it may run a `Match exec`."""


def ask_ssh(address: Address, config_file: str | None) -> Settings:
    """Return the settings from `ssh -G`. Raises InputError if ssh refuses the host, HostError if ssh cannot be run."""
    argv, host = [*ssh_words(address, config_file), "-T", "-G"], ["--", address.host]
    try:
        done = subprocess.run(
            [*argv, *host], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False
        )
        if forks := b"Cannot fork into background" in done.stderr:
            argv.append("-oForkAfterAuthentication=no")
            done = subprocess.run(
                [*argv, *host], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False
            )
    except subprocess.TimeoutExpired:
        what = f"'ssh -G' did not answer in {_LIMIT:.0f} s"
        raise HostError(address.host, what, "Check for a slow 'Match exec' in the ssh configuration.") from None
    except FileNotFoundError:
        what, cure = (
            "the program ssh is not installed",
            "Install the OpenSSH client, which reads your ssh configuration.",
        )
        raise HostError(address.host, what, cure) from None
    except OSError as error:
        raise HostError(address.host, f"ssh cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        said = clean(done.stderr.decode(errors="replace").strip())
        raise InputError(
            f"ssh cannot use '{address.host}' as a host: {said}", "Correct the ssh configuration or the name."
        )
    settings: dict[str, list[str]] = {"forkafterauthentication": ["yes"]} if forks else {}
    for line in done.stdout.decode(errors="surrogateescape").splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    return settings


def ssh_words(address: Address, config_file: str | None) -> list[str]:
    """The beginning of an ssh command line: configuration, user and port, but not the host."""
    argv = ["ssh"]
    argv += ["-F", config_file] if config_file is not None else []
    argv += ["-l", address.user] if address.user else []
    return [*argv, "-p", str(address.port)] if address.port else argv


# OpenSSH refuses these in names as well, since ProxyCommand and Match exec pass them to a shell.
_FORBIDDEN = {
    "host": re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}]"),
    # In a Windows domain, user names contain a backslash (CORP\\alice), and those of machines end with `$`.
    "user": re.compile(r"[\s\x00-\x1f\x7f'\"`;&<>|(){}]|\\\Z"),
}
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_LEFT_TO_SSH = ("ProxyCommand", "KnownHostsCommand", "RevokedHostKeys", "BindInterface")
_OF_COMMANDS = {"ForkAfterAuthentication": "no", "SessionType": "default", "StdinNull": "no", "Tunnel": "no"}
"""Settings that a command needs. OpenSSH before 8.7 knows two of them, and refuses a command line with the others."""
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>.*)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:@]+))(?::(?P<port>\d+))?/?")


@dataclass(frozen=True)
class SshTarget:
    """How to connect to one host: the supported settings of ssh_config, with paths and tokens expanded."""

    name: str
    """The host as in the profile."""
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    certificate_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None
    """Path of the agent's socket; None: no agent."""
    proxy_jump: tuple[str, ...]
    """Hops as `[user@]host[:port]`, in the order in which they are dialled."""
    host_key_alias: str | None
    user_known_hosts: tuple[str, ...]
    global_known_hosts: tuple[str, ...]
    hash_known_hosts: bool
    check_host_ip: bool
    strict: str
    """`yes`, `ask`, `accept-new` or `no`, as StrictHostKeyChecking."""
    ciphers: tuple[str, ...]
    macs: tuple[str, ...]
    key_exchanges: tuple[str, ...]
    host_key_algorithms: tuple[str, ...]
    public_key_algorithms: tuple[str, ...]
    required_rsa_size: int
    connect_timeout: float | None
    """Seconds; None: not set."""
    family: socket.AddressFamily
    bind_address: str | None
    public_key: bool
    password: bool
    keyboard_interactive: bool
    password_prompts: int
    left_to_ssh: str = ""
    """The first setting that only the ssh program supports, or empty."""
    control_path: str = ""
    """Path of the socket of a shared connection (ControlPath); nothing is there if none is open."""
    no_command: tuple[str, ...] = ()
    """Options for the ssh program that undo settings under which it would not run a command."""
    by_hand: str = ""
    """The shell command that logs in to the host; empty: `ssh` and its name."""

    @property
    def command(self) -> str:
        """The shell command that logs in to the host."""
        return self.by_hand or f"ssh {self.name}"

    @property
    def place(self) -> str:
        """`user@hostname:port`, for messages."""
        return f"{self.user}@{self.hostname}:{self.port}"


def resolve(address: Address, config_file: str | None) -> SshTarget:
    """Return the settings that `ssh` uses for this host.

    Args:
        address: The host; its user and port override the configuration.
        config_file: As ssh's -F; None: the user's and the system's files.

    Raises:
        InputError: The name or the configuration is not usable.
        HostError: There is no ssh program, or it does not answer.
    """
    _refuse("host", address.host)
    _refuse("user", address.user or "root")
    if config_file is not None and not os.access(config_file, os.R_OK):
        raise InputError(f"{config_file}: the ssh configuration cannot be read", "Check the path.")
    words = [*ssh_words(address, config_file), address.host]
    return replace(target(address.host, ask_ssh(address, config_file)), by_hand=" ".join(map(quote, words)))


def hop_address(hop: str) -> Address:
    """Parse one hop of a ProxyJump, `[user@]host[:port]`. Raises InputError."""
    match = _HOP.fullmatch(hop)
    if not match:
        raise InputError(f"ProxyJump: '{clean(hop)}' is not [user@]host[:port]", "Correct the ssh configuration.")
    port = int(match["port"]) if match["port"] else None
    return Address(match["v6"] or match["host"], match["user"], port)


def target(name: str, settings: Settings) -> SshTarget:
    """Build the target from the output of `ssh -G`. Raises InputError."""

    def first(key: str, default: str = "") -> str:
        value = next(iter(settings.get(key, ())), default)
        return default if value.lower() == "none" else value

    def whole(key: str, default: int) -> int:
        text = first(key, str(default))
        if not text.isdigit():
            raise InputError(f"ssh configuration of {name}: {key} '{clean(text)}' is not a number")
        return int(text)

    user = first("user") or getpass.getuser()
    hostname = first("hostname", name)
    _refuse("user", user)
    _refuse("host", hostname)
    alias = first("hostkeyalias") or None
    tokens = host_tokens(name, hostname, first("port", "22"), user, alias, first("proxyjump"))

    def paths(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(expand_path(value, tokens) for value in values if value.lower() != "none")

    def files(keyword: str) -> tuple[str, ...]:
        return _separate(expand_path(first(keyword), tokens)) if first(keyword) else ()

    def listed(keyword: str, older: str = "") -> tuple[str, ...]:
        value = first(keyword) or first(older)
        return tuple(filter(None, value.split(",")))

    jump, strict = first("proxyjump"), first("stricthostkeychecking", "ask").lower()
    left_to_ssh = [name for name in _LEFT_TO_SSH if first(name.lower()) and not (jump and name == "ProxyCommand")]
    methods = first("preferredauthentications", "publickey,keyboard-interactive,password").split(",")
    return SshTarget(
        name=name,
        hostname=hostname,
        port=whole("port", 22),
        user=user,
        identity_files=paths(settings.get("identityfile", ())),
        certificate_files=paths(settings.get("certificatefile", ())),
        identities_only=_yes(first("identitiesonly", "no")),
        identity_agent=_agent(next(iter(settings.get("identityagent", ())), "SSH_AUTH_SOCK"), tokens),
        proxy_jump=tuple(expand(jump, tokens).split(",")) if jump else (),
        host_key_alias=alias,
        user_known_hosts=files("userknownhostsfile"),
        global_known_hosts=files("globalknownhostsfile"),
        hash_known_hosts=_yes(first("hashknownhosts", "no")),
        check_host_ip=_yes(first("checkhostip", "no")),
        strict={"true": "yes", "false": "no", "off": "no"}.get(strict, strict),
        ciphers=listed("ciphers"),
        macs=listed("macs"),
        key_exchanges=listed("kexalgorithms"),
        host_key_algorithms=listed("hostkeyalgorithms"),
        public_key_algorithms=listed("pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"),
        required_rsa_size=max(LEAST_RSA_BITS, whole("requiredrsasize", LEAST_RSA_BITS)),
        connect_timeout=float(whole("connecttimeout", 0)) or None,
        family=_FAMILIES.get(first("addressfamily").lower(), socket.AF_UNSPEC),
        bind_address=first("bindaddress") or None,
        public_key=_yes(first("pubkeyauthentication", "yes")) and "publickey" in methods,
        password=_yes(first("passwordauthentication", "yes")) and "password" in methods,
        keyboard_interactive=_yes(first("kbdinteractiveauthentication", "yes")) and "keyboard-interactive" in methods,
        password_prompts=0 if _yes(first("batchmode", "no")) else whole("numberofpasswordprompts", 3),
        left_to_ssh=next(iter(left_to_ssh), ""),
        control_path=first("controlpath"),
        no_command=tuple(
            f"-o{key}={value}"
            for key, value in _OF_COMMANDS.items()
            if settings.get(key.lower(), (value,))[0].lower() not in (value, "false")
        ),
    )


def _separate(line: str) -> tuple[str, ...]:
    """Split a line of paths from `ssh -G`, which separates them with spaces and does not escape spaces in paths.

    The longest run of words that names a file is one path; if none does, the next path begins at a `/` or `~`.
    """
    found: list[str] = []
    words = line.split(" ")
    while words:
        lengths = range(len(words), 0, -1)
        begins = (index for index in range(1, len(words)) if words[index].startswith(("/", "~")))
        size = next((size for size in lengths if _is_file(" ".join(words[:size]))), None) or next(begins, len(words))
        if path := " ".join(words[:size]).strip():
            found.append(str(in_home(path)))
        words = words[size:]
    return tuple(found)


def _is_file(path: str) -> bool:
    place = in_home(path)
    return bool(path.strip()) and place.exists() and not place.is_dir()


def _refuse(kind: str, value: str) -> None:
    if not value or value.startswith("-") or _FORBIDDEN[kind].search(value):
        raise InputError(
            f"'{clean(value)}' is not a valid {kind} name: it is empty, begins with '-', or contains spaces or "
            "shell characters",
            f"Give the {kind} as in your ssh configuration.",
        )


def _agent(value: str, tokens: Mapping[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return expand_path(value, tokens)


def _yes(value: str) -> bool:
    return value.lower() in ("yes", "true", "unbound", "host-bound")
