"""What the user's ssh configuration says about a host, resolved by ssh itself where there is one."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.address import Address
from runner.errors import InputError
from runner.text import clean
from runner.transport.algorithms import DEFAULTS, LEAST_RSA_BITS, algorithms
from runner.transport.ssh_settings import Settings, ask_ssh, read_settings
from runner.transport.ssh_tokens import expand, expand_path, host_tokens

# What OpenSSH refuses in names as well: they end up in ProxyCommand and Match exec, which a shell reads.
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}]")
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
    proxy_command: str | None = None
    host_key_alias: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    known_hosts_command: str | None = None
    """KnownHostsCommand as it stands in the configuration."""
    revoked_host_keys: tuple[str, ...] = ()
    hash_known_hosts: bool = False
    check_host_ip: bool = False
    strict: str = "ask"
    """`yes`, `ask`, `accept-new` or `no`, as StrictHostKeyChecking."""
    ciphers: tuple[str, ...] = DEFAULTS["ciphers"]
    macs: tuple[str, ...] = DEFAULTS["macs"]
    key_exchanges: tuple[str, ...] = DEFAULTS["kexalgorithms"]
    host_key_algorithms: tuple[str, ...] = DEFAULTS["hostkeyalgorithms"]
    public_key_algorithms: tuple[str, ...] = DEFAULTS["pubkeyacceptedalgorithms"]
    authority_algorithms: tuple[str, ...] = DEFAULTS["casignaturealgorithms"]
    required_rsa_size: int = LEAST_RSA_BITS
    connect_timeout: float | None = None
    """Seconds, None: not set."""
    family: socket.AddressFamily = socket.AF_UNSPEC
    bind_address: str | None = None
    public_key: bool = True
    password: bool = True
    keyboard_interactive: bool = True
    password_prompts: int = 3

    @property
    def place(self) -> str:
        """`user@hostname:port`, for messages."""
        return f"{self.user}@{self.hostname}:{self.port}"

    @property
    def tokens(self) -> dict[str, str]:
        """The %-tokens of ssh_config(5) for this host."""
        jump = ",".join(self.proxy_jump)
        return host_tokens(self.name, self.hostname, str(self.port), self.user, self.host_key_alias, jump)


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
    return target(address.host, settings)


def hop_address(hop: str) -> Address:
    """Return the host that one hop of a ProxyJump names. Raises InputError."""
    match = _HOP.fullmatch(hop)
    if not match:
        raise InputError(f"ProxyJump: '{clean(hop)}' is no [user@]host[:port]", "Correct the ssh configuration.")
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
            raise InputError(f"ssh configuration of {name}: {key} '{clean(text)}' is no number")
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
        return algorithms(keyword, value) if value else DEFAULTS[keyword]

    jump = first("proxyjump")
    command = first("proxycommand")
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
        proxy_command=expand(command, tokens) if command and not jump else None,
        host_key_alias=alias,
        user_known_hosts=files("userknownhostsfile"),
        global_known_hosts=files("globalknownhostsfile"),
        known_hosts_command=first("knownhostscommand") or None,
        revoked_host_keys=files("revokedhostkeys"),
        hash_known_hosts=_yes(first("hashknownhosts", "no")),
        check_host_ip=_yes(first("checkhostip", "no")),
        strict=_strict(first("stricthostkeychecking", "ask")),
        ciphers=listed("ciphers"),
        macs=listed("macs"),
        key_exchanges=listed("kexalgorithms"),
        host_key_algorithms=listed("hostkeyalgorithms"),
        public_key_algorithms=listed("pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"),
        authority_algorithms=listed("casignaturealgorithms"),
        required_rsa_size=max(LEAST_RSA_BITS, whole("requiredrsasize", LEAST_RSA_BITS)),
        connect_timeout=float(whole("connecttimeout", 0)) or None,
        family=_family(first("addressfamily", "any")),
        bind_address=first("bindaddress") or None,
        public_key=_yes(first("pubkeyauthentication", "yes")) and "publickey" in methods,
        password=_yes(first("passwordauthentication", "yes")) and "password" in methods,
        keyboard_interactive=_yes(first("kbdinteractiveauthentication", "yes")) and "keyboard-interactive" in methods,
        password_prompts=0 if _yes(first("batchmode", "no")) else whole("numberofpasswordprompts", 3),
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
            found.append(str(Path(path).expanduser()))
        words = words[size:]
    return tuple(found)


def _is_file(path: str) -> bool:
    place = Path(path).expanduser()
    return bool(path.strip()) and place.exists() and not place.is_dir()


def _refuse(kind: str, value: str) -> None:
    if not value or value.startswith("-") or _FORBIDDEN.search(value):
        raise InputError(
            f"'{clean(value)}' is no {kind} name for ssh: it is empty, begins with '-', or holds spaces or shell signs",
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
