"""What a profile has run, and which secrets it sends where: shown before any of it happens. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from disttui.runner.profile.problems import printable
from disttui.runner.profile.references import Kind, Reference, references
from disttui.runner.profile.schema import NOTIFY_KINDS, Profile
from disttui.runner.profile.sections import Job
from disttui.runner.text import quote

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

When = Literal["plan", "send", "start", "resume", "notify", "end", "pull"]
"""`plan`: to find out what a host has, and again at the start; `send`: nothing is run, a folder of this machine is
copied there; `start`: for every attempt; `resume`: for every attempt but the first; `notify`: whenever something is
reported; `end`: of the run; `pull`: nothing is run, `disttui runs pull` copies what the words name."""


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
    for kind in NOTIFY_KINDS:
        goes(getattr(profile.notify, kind) or "", f"notify.{kind}", everybody)
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
    if box := profile.container:
        yield Effect("container", everywhere, "start", (box.runtime, box.image, *box.mounts, *box.options))
    yield from _preparation(profile.job, everywhere)
    for one in profile.data:
        here = not one.is_address and not one.host_path[0]
        yield Effect("data", everywhere, "send" if here else "start", (one.source, one.to))
    target = profile.job.target
    yield Effect(f"job.{target.kind}", everywhere, "start", (target.value, *target.args))
    if profile.launch.resume_args:
        yield Effect("launch.resume_args", everywhere, "resume", profile.launch.resume_args)
    if profile.job.outputs:
        yield Effect("job.outputs", everywhere, "pull", profile.job.outputs)
    for kind in NOTIFY_KINDS:
        if address := getattr(profile.notify, kind):
            shown = address if references(address) else shown_address(address)
            yield Effect(f"notify.{kind}", everywhere, "notify", (shown,))
    if profile.on_end.command:
        yield Effect("on_end.command", (HERE,), "end", profile.on_end.command)
    if profile.on_end.webhook:
        yield Effect("on_end.webhook", (HERE,), "end", (shown_address(profile.on_end.webhook),))


def _preparation(job: Job, everywhere: tuple[str, ...]) -> Iterator[Effect]:
    if job.sync:
        words = (job.sync.source, *(f"include {one}" for one in job.sync.include))
        yield Effect("job.sync", everywhere, "send", words)
    if environment := job.environment:
        sent = (environment.source, *([environment.wheels] if environment.wheels else []))
        yield Effect("job.environment", everywhere, "start", sent)
    if job.setup:
        yield Effect("job.setup", everywhere, "start", job.setup)


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


_MOST_NAMES = 8
_LINES = ("python", "activate", "on_end.webhook", *(f"notify.{kind}" for kind in NOTIFY_KINDS))
"""Keys with one word that is not a command line."""
_WHEN = {
    "plan": ", already for a plan",
    "send": ", copied from this machine",
    "start": "",
    "resume": ", from the second attempt on",
    "notify": ", sends what happens to the run",
    "end": ", when the run ends",
    "pull": ", copied to this machine by `disttui runs pull`",
}


def names(where: Sequence[str]) -> str:
    """`node1, node2 and 30 more`."""
    more = len(where) - _MOST_NAMES
    return ", ".join(where) if more <= 0 else f"{', '.join(where[:_MOST_NAMES])} and {more} more"


def _all_names(where: Sequence[str], profile: Profile) -> str:
    """`node1, node2`, or `all 32 hosts` of a profile; of some of them none is left out, the user decides by them."""
    if len(where) > _MOST_NAMES and len(where) == len(profile.hosts):  # each has a name of its own
        return f"all {len(profile.hosts)} hosts"
    return ", ".join(where)


def command_text(effect: Effect) -> str:
    """What is run, as it would be typed, in one line; what cannot be seen is written as its escape."""
    line = effect.key in _LINES or effect.key.startswith("env.")
    return printable(effect.words[0]) if line else shown_words(effect.words)


def shown_words(words: Iterable[str]) -> str:
    """The words of a command as a person reads them: one with characters that cannot be seen has their escapes."""
    return " ".join(quote(word) if word.isprintable() else repr(word) for word in words)


def effect_lines(profile: Profile, *, job: bool = True) -> Iterator[tuple[str, str]]:
    """(the key, what happens where) of everything, as safe text.

    Args:
        job: Whether to include the job itself.
    """
    for effect in effects(profile):
        if effect.key in JOB and not job:
            continue
        yield effect.key, f"on {_all_names(effect.where, profile)}{_WHEN[effect.when]}: {command_text(effect)}"
    for secret in secrets(profile):
        yield printable(str(Reference(secret.kind, secret.name))), secret_text(secret, profile)


def secret_text(secret: Secret, profile: Profile) -> str:
    """Which hosts get a secret, and in which variables."""
    return printable(f"to {_all_names(secret.where, profile)}, as {', '.join(secret.variables)}")


def logins(profile: Profile) -> list[str]:
    """Each host with the login that the profile has for it, in their order."""
    found = [host.name if host.name == host.label() else f"{host.name} ({host.label()})" for host in profile.hosts]
    return list(map(printable, found))


def foreign_lines(profile: Profile) -> Iterator[tuple[str, str]]:
    """The same of a profile that came from a host, with the logins and the variables that it has for its hosts."""
    yield "hosts", ", ".join(logins(profile))
    yield from effect_lines(profile)
    if variables := profile.variables:
        yield "env", printable(", ".join(variables))
