"""What the user's ssh configuration says about a host, resolved by ssh itself where there is one."""

from __future__ import annotations

import fnmatch
import getpass
import os
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from disttui.runner.address import Address
from disttui.runner.errors import HostError, InputError
from disttui.runner.text import clean, quote
from disttui.runner.transport.algorithms import DEFAULTS, LEAST_RSA_BITS
from disttui.runner.transport.ssh_config_files import ConfigReader, Statement, expand, expand_path, host_tokens, in_home

Settings = Mapping[str, Sequence[str]]
"""Keyword in lower case → its values, as `ssh -G` prints them."""

_LIMIT = 20.0
"""Seconds for `ssh -G`, which may run a `Match exec`."""
_MANY = ("identityfile", "certificatefile")
_DEFAULTS = {
    "identityfile": ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


def ask_ssh(address: Address, config_file: str | None, ssh: str) -> Settings:
    """Return what the ssh program says. Raises InputError for what it refuses, HostError where it gives no answer."""
    argv = [*ssh_words(address, config_file, ssh), "-T", "-G", "--", address.host]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        what = f"'ssh -G' gave no answer in {_LIMIT:.0f} s"
        raise HostError(address.host, what, "Look for a slow 'Match exec' in the ssh configuration.") from None
    except OSError as error:
        raise HostError(address.host, f"{ssh} cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        said = clean(done.stderr.decode(errors="replace").strip())
        raise InputError(
            f"ssh cannot use '{address.host}' as a host: {said}", "Correct the ssh configuration or the name."
        )
    settings: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="surrogateescape").splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    return settings


def ssh_words(address: Address, config_file: str | None, ssh: str) -> list[str]:
    """The beginning of an ssh command line: the configuration, and the address but for the host."""
    argv = [ssh]
    argv += ["-F", config_file] if config_file is not None else []
    argv += ["-l", address.user] if address.user else []
    return [*argv, "-p", str(address.port)] if address.port else argv


def read_settings(address: Address, config_file: str | None) -> Settings:
    """Return what the files say. Raises InputError with file and line."""
    reader = _HostReader(address)
    reader.read_all(config_file)
    hostname = expand(reader.settings.get("hostname", [address.host])[0], {"h": address.host, "%": "%"})
    return {**_DEFAULTS, **reader.settings, "hostname": [hostname]}


class _HostReader(ConfigReader[Literal[True]]):
    """Collects the settings of one host: the first value of a keyword stays."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.settings: dict[str, list[str]] = {}
        self._name = address.host
        if address.user:
            self.settings["user"] = [address.user]
        if address.port:
            self.settings["port"] = [str(address.port)]

    def opens(self, keyword: str, words: list[str]) -> Literal[True] | None:
        if keyword == "match" and [word.lower() for word in words] != ["all"]:
            raise ValueError("Match needs the ssh program")
        return True if keyword == "match" or _matches(words, self._name) else None

    def takes(self, block: Literal[True], keyword: str, words: list[str]) -> None:
        if keyword in _MANY:
            known = self.settings.setdefault(keyword, [])
            known += [word for word in words if word not in known]
        elif keyword in DEFAULTS and re.search(r"^[+^-]|[*?]", " ".join(words)):
            raise ValueError(f"a list that changes the default of {keyword} needs the ssh program")
        else:
            self.settings.setdefault(keyword, [" ".join(words)])

    def wrong(self, statement: Statement, why: str) -> None:
        raise InputError(f"{statement.place}: {why}", "Correct the ssh configuration.")

    def unreadable(self, file: Path, why: str) -> None:
        """As ssh does, which reads the rest."""


def _matches(patterns: Iterable[str], text: str) -> bool:
    found = False
    for pattern in patterns:
        # ssh has no character classes.
        if fnmatch.fnmatchcase(text.lower(), pattern.lstrip("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


# What OpenSSH refuses in names as well: they end up in ProxyCommand and Match exec, which a shell reads.
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}]")
_LEFT_TO_SSH = ("ProxyCommand", "KnownHostsCommand", "RevokedHostKeys")
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]*)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?")


@dataclass(frozen=True)
class SshTarget:
    """How to reach one host: the settings of ssh_config that are acted on, with paths and tokens expanded."""

    name: str
    """The host as it was asked for."""
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    """The agent's socket, None: no agent."""
    proxy_jump: tuple[str, ...] = ()
    """Hops as `[user@]host[:port]`, the first one is dialled first."""
    host_key_alias: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    hash_known_hosts: bool = False
    check_host_ip: bool = False
    strict: str = "ask"
    """`yes`, `ask`, `accept-new` or `no`, as StrictHostKeyChecking."""
    ciphers: tuple[str, ...] = DEFAULTS["ciphers"]
    macs: tuple[str, ...] = DEFAULTS["macs"]
    key_exchanges: tuple[str, ...] = DEFAULTS["kexalgorithms"]
    host_key_algorithms: tuple[str, ...] = DEFAULTS["hostkeyalgorithms"]
    public_key_algorithms: tuple[str, ...] = DEFAULTS["pubkeyacceptedalgorithms"]
    required_rsa_size: int = LEAST_RSA_BITS
    connect_timeout: float | None = None
    """Seconds, None: not set."""
    family: socket.AddressFamily = socket.AF_UNSPEC
    bind_address: str | None = None
    public_key: bool = True
    password: bool = True
    keyboard_interactive: bool = True
    password_prompts: int = 3
    left_to_ssh: str = ""
    """A setting that only the ssh program follows."""
    by_hand: str = ""
    """The command that logs in to it in a shell; empty: `ssh` and its name."""

    @property
    def command(self) -> str:
        """The command that logs in to it in a shell."""
        return self.by_hand or f"ssh {self.name}"

    @property
    def place(self) -> str:
        """`user@hostname:port`, for messages."""
        return f"{self.user}@{self.hostname}:{self.port}"


def resolve(address: Address, config_file: str | None, ssh: str | None) -> SshTarget:
    """Return what `ssh` would do for this host.

    Args:
        address: The host; its user and port go before those of the configuration.
        config_file: As ssh's -F; None: the user's and the system's files.
        ssh: Path of the ssh program, None: the files are read without it.

    Raises:
        InputError: The name or the configuration is not usable.
    """
    _refuse("host", address.host)
    _refuse("user", address.user or "root")
    if config_file is not None and not os.access(config_file, os.R_OK):
        raise InputError(f"{config_file}: the ssh configuration cannot be read", "Check the path.")
    settings = read_settings(address, config_file) if ssh is None else ask_ssh(address, config_file, ssh)
    words = [*ssh_words(address, config_file, "ssh"), address.host]
    return replace(target(address.host, settings), by_hand=" ".join(map(quote, words)))


def hop_address(hop: str) -> Address:
    """Return the host that one hop of a ProxyJump names. Raises InputError."""
    match = _HOP.fullmatch(hop)
    if not match:
        raise InputError(f"ProxyJump: '{clean(hop)}' is not [user@]host[:port]", "Correct the ssh configuration.")
    port = int(match["port"]) if match["port"] else None
    return Address(match["v6"] or match["host"], match["user"], port)


def target(name: str, settings: Settings) -> SshTarget:
    """Build the target from settings as `ssh -G` gives them. Raises InputError."""

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
        return tuple(filter(None, value.split(","))) or DEFAULTS[keyword]

    jump = first("proxyjump")
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
        strict=_strict(first("stricthostkeychecking", "ask")),
        ciphers=listed("ciphers"),
        macs=listed("macs"),
        key_exchanges=listed("kexalgorithms"),
        host_key_algorithms=listed("hostkeyalgorithms"),
        public_key_algorithms=listed("pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"),
        required_rsa_size=max(LEAST_RSA_BITS, whole("requiredrsasize", LEAST_RSA_BITS)),
        connect_timeout=float(whole("connecttimeout", 0)) or None,
        family=_family(first("addressfamily", "any")),
        bind_address=first("bindaddress") or None,
        public_key=_yes(first("pubkeyauthentication", "yes")) and "publickey" in methods,
        password=_yes(first("passwordauthentication", "yes")) and "password" in methods,
        keyboard_interactive=_yes(first("kbdinteractiveauthentication", "yes")) and "keyboard-interactive" in methods,
        password_prompts=0 if _yes(first("batchmode", "no")) else whole("numberofpasswordprompts", 3),
        left_to_ssh=next(iter(left_to_ssh), ""),
    )


def _separate(line: str) -> tuple[str, ...]:
    """Take apart a line of paths: `ssh -G` puts a space between them, and leaves those inside them as they are.

    The longest run of words that names a file is one path; where none does, the next path begins at a `/` or `~`.
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
    # A user of a Windows domain has a backslash: CORP\\alice.
    checked = re.sub(r"\\(?=[\w.])", ".", value) if kind == "user" else value
    if not value or value.startswith("-") or _FORBIDDEN.search(checked):
        raise InputError(
            f"'{clean(value)}' is not a {kind} name for ssh: it is empty, begins with '-', or contains spaces or shell "
            "characters",
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


def _strict(value: str) -> str:
    value = value.lower()
    return {"true": "yes", "false": "no", "off": "no"}.get(value, value)


def _family(value: str) -> socket.AddressFamily:
    return {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(value.lower(), socket.AF_UNSPEC)
