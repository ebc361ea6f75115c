"""Lists the commands that a profile runs and the secrets that it sends, and how two profiles differ in them. Pure.

Users decide by these lines whether to trust a profile: no part of a hostile one may hide another.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import reduce
from itertools import zip_longest
from operator import getitem
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from disttui.runner.profile import leaks
from disttui.runner.profile.problems import printable
from disttui.runner.profile.references import Kind, Reference, references
from disttui.runner.profile.schema import NOTIFY_KINDS, Profile
from disttui.runner.profile.sections import Job
from disttui.runner.text import quote
from disttui.runner.text.masking import MASK, masked

HERE = "this machine"
"""The machine that a run is started from."""

JOB = ("job.builtin", "job.script", "job.module", "job.command")
"""Keys of the job's own effect."""

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
"""`plan`: when a host is probed, and again at the start; `send`: nothing runs, a local folder is copied to the hosts;
`start`: in every attempt; `resume`: in every attempt but the first; `notify`: for every notification; `end`: when the
run ends; `pull`: nothing runs, `disttui runs pull` copies the named paths."""


class Effect(NamedTuple):
    """A command that a profile runs, or files that it copies; `key` is the profile key that causes it."""

    key: str
    where: tuple[str, ...]
    """Host names, or `HERE`."""
    when: When
    words: tuple[str, ...]
    """Words of the command; a single one for a shell line, an interpreter or a web address."""


class Secret(NamedTuple):
    """A local variable, file or command output that a profile sends to hosts."""

    kind: Kind
    name: str
    variables: tuple[str, ...]
    """Variables on the hosts that contain it."""
    where: tuple[str, ...]


def effects(profile: Profile) -> tuple[Effect, ...]:
    """All effects of a profile, in the order in which they happen: on the hosts, then here."""
    return tuple(_effects(profile))


def secrets(profile: Profile) -> tuple[Secret, ...]:
    """All secrets that a profile refers to: variables by name, then files and commands."""
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

    # Values common to all hosts are scanned only once: there may be 1,000 hosts and thousands of variables.
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
    # A bare name is looked up after `activate`, so only paths run as written. Our own interpreter needs no mention.
    pythons = [host.python if host.python and host.python[0] in "/~" else sys.executable for host in profile.hosts]
    own = [(python,) if python != sys.executable else () for python in pythons]
    yield from _by_host(profile, "python", "plan", own)
    lines = [(host.activate,) if host.activate.strip() else () for host in profile.hosts]
    yield from _by_host(profile, "activate", "plan", lines)
    common = profile.common_env
    for variable in profile.variables:
        if variable in _LOADERS or variable.startswith(_LOADING):
            values = [host.env.get(variable, common.get(variable)) for host in profile.hosts]
            yield from _by_host(profile, f"env.{variable}", "start", [(v,) if v is not None else () for v in values])
    everywhere = tuple(host.name for host in profile.hosts)
    yield from _surroundings(profile, everywhere)
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


def _surroundings(profile: Profile, everywhere: tuple[str, ...]) -> Iterator[Effect]:
    if profile.launch.preload:
        yield Effect("launch.preload", everywhere, "start", profile.launch.preload)
    if not profile.job.sync and profile.job.target.kind != "builtin":
        folders = [profile.workdir(rank) for rank in range(len(everywhere))]
        yield from _by_host(profile, "job.workdir", "start", [(one,) if one != "~" else () for one in folders])
    if profile.job.wrap:
        yield Effect("job.wrap", everywhere, "start", profile.job.wrap)
    if box := profile.container:
        yield Effect("container", everywhere, "start", (box.runtime, box.image, *box.mounts, *box.options))


def _preparation(job: Job, everywhere: tuple[str, ...]) -> Iterator[Effect]:
    if job.sync:
        words = (job.sync.source, *(f"include {one}" for one in job.sync.include))
        yield Effect("job.sync", everywhere, "send", words)
    if environment := job.environment:
        sent = (environment.source, *([environment.wheels] if environment.wheels else []))
        yield Effect("job.environment", everywhere, "start", sent)
    if job.setup:
        yield Effect("job.setup", everywhere, "start", job.setup)


def _by_host(profile: Profile, key: str, when: When, words: Sequence[tuple[str, ...]]) -> Iterator[Effect]:
    """Yield one effect for each group of hosts that run the same words."""
    where: dict[tuple[str, ...], list[str]] = {}
    for host, one in zip(profile.hosts, words, strict=True):
        if one:
            where.setdefault(one, []).append(host.name)
    return (Effect(key, tuple(names), when, one) for one, names in where.items())


_MOST_NAMES = 8
_LINES = ("python", "activate", "on_end.webhook", *(f"notify.{kind}" for kind in NOTIFY_KINDS))
"""Keys with one word that is not a command line."""
_WHEN = {
    "plan": ", also during checks",
    "send": ", copied from this machine",
    "start": "",
    "resume": ", from the second attempt on",
    "notify": ", on events of the run",
    "end": ", when the run ends",
    "pull": ", copied to this machine by `disttui runs pull`",
}


def names(where: Sequence[str]) -> str:
    """`node1, node2 and 30 more`."""
    more = len(where) - _MOST_NAMES
    return ", ".join(where) if more <= 0 else f"{', '.join(where[:_MOST_NAMES])} and {more} more"


def _all_names(where: Sequence[str], profile: Profile) -> str:
    """`node1, node2`, or `all 32 hosts`. A subset is listed in full, since the user decides by it."""
    if len(where) > _MOST_NAMES and len(where) == len(profile.hosts):  # host names are unique
        return f"all {len(profile.hosts)} hosts"
    return ", ".join(where)


def command_text(effect: Effect) -> str:
    """The command as one line that could be typed; invisible characters are escaped."""
    line = effect.key in _LINES or effect.key.startswith("env.")
    return printable(effect.words[0]) if line else shown_words(effect.words)


def shown_words(words: Iterable[str]) -> str:
    """The words of a command, quoted for a shell; those with invisible characters as Python literals."""
    return " ".join(quote(word) if word.isprintable() else repr(word) for word in words)


def effect_lines(profile: Profile, *, job: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (key, what happens where) of every effect and secret, as safe text.

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
    """The hosts that get a secret, and in which variables, as safe text."""
    return printable(f"to {_all_names(secret.where, profile)}, as {', '.join(secret.variables)}")


def logins(profile: Profile) -> list[str]:
    """Name and login of each host, in the profile's order, as safe text."""
    found = [host.name if host.name == host.label() else f"{host.name} ({host.label()})" for host in profile.hosts]
    return list(map(printable, found))


def foreign_lines(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield `effect_lines` of a profile that came from a host, with its logins and names of variables."""
    yield "hosts", ", ".join(logins(profile))
    yield from effect_lines(profile)
    if variables := profile.variables:
        yield "env", printable(", ".join(variables))


_MOST_LINES = 200
_LONGEST = 1000
"""Characters of a shown value."""
_ROOM = 200
"""Further characters of a line, for the key and the note about omissions."""
_AROUND = 40
"""Characters of context shown on each side of a difference."""
_SHOWN_ABOVE = frozenset((
    "job.builtin", "job.script", "job.module", "job.command", "job.args", "job.wrap", "job.outputs",
    "launch.preload", "launch.resume_args", "on_end.command", "on_end.webhook",
    *(f"notify.{kind}" for kind in NOTIFY_KINDS),
))  # fmt: skip
"""Keys that `effect_lines` shows in full."""
_OF_A_HOST = ("host", "name", "user", "port")
"""Keys of a host that the `hosts` line shows in full."""
_REPEATED = ("python", "activate")
"""Keys of the profile or a host that `effect_lines` shows in full if they are used as written."""
_FIRST = ("env.", "job.env.", "hosts.")
_ALWAYS = ("hosts:", "job.", "launch.resume_args:", "on_end.", "notify.", "${")
"""Prefixes of lines that are never omitted, as lines about effects are not."""


class _Statement(NamedTuple):
    text: str
    shown: str
    """The text with secrets masked."""
    repeats: str = ""
    """Text of the line on the same side that already contains this one."""


class Change(NamedTuple):
    """One line of a difference."""

    text: str
    always: bool
    """Whether `bounded` never omits it."""


def difference(before: Profile | None, now: Profile) -> list[Change]:
    """Lines added (`+`) and removed (`-`) between two profiles, as safe text; all are added if `before` is None."""
    running = [list(effect_lines(each)) for each in (now, before) if each]
    new = _lines(now, running[0])
    old = _lines(before, running[1]) if before else {}
    left, come = _repeated(old, new), _repeated(new, old)
    run = {key: None for lines in running for key, _ in lines}
    lines = []
    # Commands come before hosts and secrets, of which there may be many.
    for key in {**dict.fromkeys(key for key in run if not key.startswith("${")), **new, **old}:
        texts, others = ({line.text for line in each.get(key, ())} for each in (new, old))
        gone = [line.shown for line in old.get(key, ()) if line.text not in texts and line.repeats not in left]
        added = [line.shown for line in new.get(key, ()) if line.text not in others and line.repeats not in come]
        if key == "hosts" and [one for one in old.get(key, ()) if one.text in texts] != [
            one for one in new[key] if one.text in others
        ]:
            added.append(f"in another order: {', '.join(one.shown for one in new[key])}")
        cut = [_cut(*pair) for pair in zip_longest(gone, added)]
        always = key in run or (f"{key}:".startswith(_ALWAYS) and not key.startswith("job.env."))
        lines += [Change(f"- {key}: {text}", always) for text, _ in cut if text is not None]
        lines += [Change(f"+ {key}: {text}", always) for _, text in cut if text is not None]
    return lines


def _repeated(lines: Mapping[str, list[_Statement]], others: Mapping[str, list[_Statement]]) -> set[str]:
    """Texts of `_REPEATED` effects that only `lines` has: these are shown as effects already."""
    ours, theirs = ({line.text for key in _REPEATED for line in each.get(key, ())} for each in (lines, others))
    return ours - theirs


def bounded(lines: list[Change]) -> list[str]:
    """Cut a difference to 200 lines of bounded length, with a note about what is omitted.

    Commands and the recipients of secrets are never omitted.
    """
    always = [at for at, line in enumerate(lines) if line.always]
    others = [at for at, line in enumerate(lines) if not line.always]
    room = max(0, _MOST_LINES - len(always))
    shown = [_short(lines[at].text, room=_ROOM) for at in sorted([*always, *others[:room]])]
    more = len(others) - room
    return [*shown, f"… and {more:,} more lines: read the file"] if more > 0 else shown


def _cut(gone: str | None, added: str | None) -> tuple[str | None, str | None]:
    """Shorten an old text and its replacement to where they differ; either may be None."""
    if gone is None or added is None or gone == added:
        return None if gone is None else _short(gone), None if added is None else _short(added)
    before = alike(gone, added)
    after = min(alike(gone[::-1], added[::-1]), len(gone) - before, len(added) - before)
    before, after = max(0, before - _AROUND), max(0, after - _AROUND)
    return _short(gone, before, after), _short(added, before, after)


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common prefix of two sequences."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _short(text: str, before: int = 0, after: int = 0, room: int = 0) -> str:
    """Shorten a text: drop `before` unchanged characters at its start and `after` at its end, then its middle."""
    if len(text) <= _LONGEST + room:
        return text
    middle = text[before : len(text) - after]
    if (more := len(middle) - _LONGEST) > 0:
        half = _LONGEST // 2
        middle = f"{middle[:half]}… ({more:,} more characters: read the file) …{middle[-half:]}"
    same = "({:,} characters as before)"
    return f"{same.format(before) + ' …' if before else ''}{middle}{'… ' + same.format(after) if after else ''}"


def flat(data: Mapping[str, object]) -> dict[str, str]:
    """The data of a profile as `job.env.A` → text; a list of words is one text, hosts are keyed by name."""
    return dict(_flat(data, ""))


def _lines(profile: Profile, running: list[tuple[str, str]]) -> dict[str, list[_Statement]]:
    """Key → its lines; first come hosts, effects and secrets."""
    found: dict[str, list[_Statement]] = {"hosts": [_Statement(*[_with_ascii(login)] * 2) for login in logins(profile)]}
    for key, text in running:
        # Two addresses may differ only in their hidden parts.
        section, _, name = key.partition(".")
        address = getattr(getattr(profile, section), name) if section in ("on_end", "notify") else ""
        more = f" ({_digest(address)})" if isinstance(address, str) and address else ""
        found.setdefault(key, []).append(_statement(text + more))
    said: dict[tuple[str, str], str] = {}
    for key in _REPEATED:
        commands = (command_text(one) for one in effects(profile) if one.key == key)
        said |= {(key, command): line.text for command, line in zip(commands, found.get(key, ()), strict=True)}
    data = profile.as_written()
    rest, shown = flat(data), flat(_without_leaks(data))
    for key in sorted(rest, key=lambda key: not key.startswith(_FIRST)):
        if key not in _SHOWN_ABOVE and not (_is_of_host(key) and key.rpartition(".")[2] in _OF_A_HOST):
            seen = rest if key in found else shown  # effects are not masked, so masking it here would hide nothing
            text = printable(rest[key])
            above, _, last = key.rpartition(".")
            # A variable may be named python as well.
            repeats = said.get((last, text), "") if not above or _is_of_host(key) else ""
            found.setdefault(printable(key), []).append(_statement(text, printable(seen[key]), repeats))
    return found


def _is_of_host(key: str) -> bool:
    """Whether it is a direct key of a host, such as `hosts.NAME.python`."""
    return key.startswith("hosts.") and key.count(".") == 2


def _statement(text: str, shown: str | None = None, repeats: str = "") -> _Statement:
    # Text that only resembles a secret may be a command or its name, which must stay visible.
    return _Statement(text, masked(text if shown is None else shown, guesses=False), repeats)


def _with_ascii(login: str) -> str:
    """A login, with its ASCII escapes if it has other letters, since these may look like ASCII."""
    return login if login.isascii() else f"{login}, in ASCII: {ascii(login)[1:-1]}"


def _without_leaks(data: Mapping[str, object]) -> dict[str, object]:
    """A copy of a profile's data with likely secrets masked where they stand, and nowhere else."""
    copied: Any = json.loads(json.dumps(data))
    for leak in leaks.in_data(data):
        *path, last = leak.path
        if path != ["hosts"] and not (path[:1] == ["hosts"] and last in _OF_A_HOST):  # those become parts of keys
            inner = reduce(getitem, path, copied)
            inner[last] = str(inner[last]).replace(leak.value, MASK)
    return {**copied}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and path == "hosts":
        known: set[str] = set()
        for at, host in enumerate(value):
            one = host if isinstance(host, Mapping) else {"host": host}
            # A dot would look like a nested key, and hosts of the same name must not hide one another.
            name = str(one.get("name") or one.get("host") or at).replace(".", "_")
            name = f"{name}#{at}" if name in known else name
            known.add(name)
            yield from _flat(one, f"hosts.{name}")
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        for at, one in enumerate(value):
            yield from _flat(one, f"{path}.{at}")
    else:
        yield path, _text(value)


def _text(value: object) -> str:
    if isinstance(value, list):
        return shown_words(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
