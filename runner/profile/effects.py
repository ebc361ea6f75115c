"""What a profile has run, and which secrets it sends where: shown before any of it happens. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from runner.profile.references import Kind, Reference, references
from runner.profile.schema import Profile

HERE = "this machine"
"""Where a run is started from."""

JOB = ("job.builtin", "job.script", "job.module", "job.command")
"""Keys of the effect that is the job itself."""

_LOADERS = frozenset((
    "PATH", "ENV", "BASH_ENV", "ZDOTDIR", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE",
    "PYTHONPLATLIBDIR", "PYTHONWARNINGS", "PYTHONBREAKPOINT", "PYTHONEXECUTABLE", "PERL5LIB", "PERL5OPT",
    "NODE_OPTIONS", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "CUDA_INJECTION64_PATH",
    "NCCL_ENV_PLUGIN", "NCCL_CONF_FILE", "UCX_MODULE_DIR", "FI_PROVIDER_PATH", "HDF5_PLUGIN_PATH",
    "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CC", "CXX",
    "GCONV_PATH", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES",
))  # fmt: skip
_LOADING = ("LD_", "DYLD_", "OMPI_MCA_", "GIT_SSH", "GIT_CONFIG", "GIT_EXEC_PATH")
"""Prefixes and names of variables that make programs run other code."""

When = Literal["plan", "start", "resume", "end", "pull"]
"""`plan`: to find out what a host has, and again at the start; `start`: for every attempt; `resume`: for every attempt
but the first; `end`: of the run; `pull`: nothing is run, `disttui pull` copies what the words name."""


class Effect(NamedTuple):
    """Something that a profile has run. `key` is the profile's."""

    key: str
    where: tuple[str, ...]
    """Names of hosts, or `HERE`."""
    when: When
    words: tuple[str, ...]
    """The words of a command; one only for a line that a shell reads, an interpreter or a web address."""


class Secret(NamedTuple):
    """A variable, a file or a command's output of this machine that a profile sends to hosts."""

    kind: Kind
    name: str
    variables: tuple[str, ...]
    """What it is part of there."""
    where: tuple[str, ...]


def effects(profile: Profile) -> tuple[Effect, ...]:
    """All that runs: on the hosts in the order in which it does, then here."""
    return tuple(_effects(profile))


def secrets(profile: Profile) -> tuple[Secret, ...]:
    """All that the profile refers to: variables by name, then files and commands."""
    names = tuple(host.name for host in profile.hosts)
    everybody = frozenset(range(len(names)))
    own: dict[str, dict[int, str]] = {}
    for rank, host in enumerate(profile.hosts):
        for variable, text in host.env.items():
            own.setdefault(variable, {})[rank] = text
    variables: dict[Reference, dict[str, None]] = {}
    ranks: dict[Reference, set[int]] = {}

    def goes(text: str, variable: str, where: Set[int]) -> None:
        for found in references(text) if where else ():
            variables.setdefault(found, {})[variable] = None
            ranks.setdefault(found, set()).update(where)

    # A text that all hosts get is looked at once: there may be 1,000 hosts and thousands of variables.
    for variable, text in profile.common_env.items():
        goes(text, variable, everybody - own[variable].keys() if variable in own else everybody)
    for variable, texts in own.items():
        for rank, text in texts.items():
            goes(text, variable, {rank})
    order = sorted(variables, key=lambda one: (("env", "file", "cmd").index(one.kind), one.name))
    where = {
        one: names if ranks[one] == everybody else tuple(names[rank] for rank in sorted(ranks[one])) for one in order
    }
    return tuple(Secret(one.kind, one.name, tuple(variables[one]), where[one]) for one in order)


def shown_address(url: str) -> str:
    """A web address without the parts that are often secret: path, query, login."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}/…" if parts.path.strip("/") or parts.query else f"{parts.scheme}://{host}"


def _effects(profile: Profile) -> Iterator[Effect]:
    # A bare name is looked up after `activate`; only a path is run as it stands. Our own is no choice of the profile's.
    yield from _by_host(profile, "python", "plan", [_path_of(host.python) for host in profile.hosts])
    yield from _by_host(profile, "activate", "plan", [_line_of(host.activate) for host in profile.hosts])
    common = profile.common_env
    for variable in profile.variables:
        if variable in _LOADERS or variable.startswith(_LOADING):
            values = [host.env.get(variable, common.get(variable)) for host in profile.hosts]
            yield from _by_host(profile, f"env.{variable}", "start", [(v,) if v is not None else () for v in values])
    everywhere = tuple(host.name for host in profile.hosts)
    if profile.job.wrap:
        yield Effect("job.wrap", everywhere, "start", profile.job.wrap)
    target = profile.job.target
    yield Effect(f"job.{target.kind}", everywhere, "start", (target.value, *target.args))
    if profile.launch.resume_args:
        yield Effect("launch.resume_args", everywhere, "resume", profile.launch.resume_args)
    if profile.job.outputs:
        yield Effect("job.outputs", everywhere, "pull", profile.job.outputs)
    if profile.on_end.command:
        yield Effect("on_end.command", (HERE,), "end", profile.on_end.command)
    if profile.on_end.webhook:
        yield Effect("on_end.webhook", (HERE,), "end", (shown_address(profile.on_end.webhook),))


def _path_of(python: str | None) -> tuple[str, ...]:
    return (python,) if python and python[0] in "/~" and python != sys.executable else ()


def _line_of(activate: str) -> tuple[str, ...]:
    return (activate,) if activate.strip() else ()


def _by_host(profile: Profile, key: str, when: When, words: Sequence[tuple[str, ...]]) -> Iterator[Effect]:
    """One effect for all hosts that run the same."""
    where: dict[tuple[str, ...], list[str]] = {}
    for host, one in zip(profile.hosts, words, strict=True):
        if one:
            where.setdefault(one, []).append(host.name)
    return (Effect(key, tuple(names), when, one) for one, names in where.items())
