"""The state of the wizard: an immutable draft of a profile, the facts of its hosts, and the resulting plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

from disttui.runner.api.carrying import RunCode
from disttui.runner.api.library import ReadProfile
from disttui.runner.api.preparing import Planned, as_run, plan_run
from disttui.runner.api.probing import Asked, hosts_of
from disttui.runner.api.rerunning import Again
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.hosts.discovery import Discovered
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.hosts.link import Link
from disttui.runner.paths import to_send
from disttui.runner.planning.preflight import Finding
from disttui.runner.profile.fields import slug
from disttui.runner.profile.library import library_of
from disttui.runner.profile.load import parse, with_overrides
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.save import as_data, edit, render
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import ACCELERATES, Backend, Host, Launcher, Precision, Strategy

JOB_KINDS = ("builtin", "script", "module", "command")


@dataclass(frozen=True)
class Draft:
    """An unfinished profile. `data` is the content of the file; values missing there are decided from the hosts."""

    data: Mapping[str, Any]
    old: str = ""
    """The original text of the file that is being edited."""
    path: Path | None = None
    sandbox: bool = False
    """Whether the hosts are sandbox hosts on this machine."""
    named: bool = False
    """Whether the user has chosen the name."""
    again: Again | None = None
    """The run to rerun, if any."""

    @property
    def hosts(self) -> list[str]:
        """The hosts as a user would type them, in the file's order."""
        return [entry_name(entry) for entry in self.data.get("hosts", ())]

    @property
    def title(self) -> str:
        """The profile's name, or else that of its file; may be empty."""
        return str(self.data.get("name") or (self.path.stem if self.path else ""))

    @property
    def divides_job(self) -> bool:
        """Whether `parallel` and `precision` reach the job: the built-in one, or any by Accelerate's launchers."""
        launch = self.data.get("launch")
        launcher = launch.get("launcher") if isinstance(launch, Mapping) else None
        return launcher in ACCELERATES or "builtin" in self.data.get("job", {})

    @property
    def ssh_config(self) -> str | None:
        """The ssh configuration of the run to rerun; None for the app's."""
        return self.again.ssh_config if self.again else None

    @cached_property
    def text(self) -> str:
        return edit(self.old, self.data) if self.old else render(self.data)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        return () if self._checked[0] else self._checked[1]

    @property
    def profile(self) -> Profile | None:
        """The profile; None while there are problems."""
        return self._checked[0]

    @cached_property
    def _checked(self) -> tuple[Profile | None, tuple[str, ...]]:
        try:
            found = parse(self.text, self.path or Path("profile"))
            as_run(found, sandbox=self.sandbox)
        except ProfileErrors as error:
            return None, tuple(one.reason for one in error.problems)
        except InputError as error:
            return None, (error.what,)
        return found, ()

    def host(self, name: str) -> Host:
        """The host with a typed name, with its settings if the profile has it. Raises InputError."""
        known = self.hosts.index(name) if name in self.hosts else -1
        if self.profile and known >= 0:
            return self.profile.hosts[known]
        return hosts_of([name])[0]

    def with_hosts(self, names: Sequence[str], *, sandbox: bool = False) -> Draft:
        """The same job on other hosts; hosts that stay keep their settings."""
        before = {entry_name(entry): entry for entry in self.data.get("hosts", ())}
        return self.put(("hosts",), [before.get(name, name) for name in names], sandbox=sandbox)

    def with_processes(self, rank: int, count: int | None) -> Draft:
        """Set one host's number of processes (None to decide from the host); written once if it is equal for all."""
        top = self.data.get("num_processes")
        entries = list(self.data.get("hosts", ()))
        wanted = [entry.get("num_processes", top) if isinstance(entry, Mapping) else top for entry in entries]
        wanted[rank] = count
        plain = [None if one == "auto" else one for one in wanted]
        if len(set(plain)) == 1:
            top = plain[0]
            own: list[Any] = [None] * len(entries)
        else:
            own = [None if one == (None if top == "auto" else top) else one or "auto" for one in plain]
        hosts = [_with_key(entry, "num_processes", one) for entry, one in zip(entries, own, strict=True)]
        return self.put(("hosts",), hosts).put(("num_processes",), top)

    def said(self, rank: int) -> Mapping[str, Any]:
        """The file's settings for one host."""
        entry = self.data.get("hosts", ())[rank]
        return entry if isinstance(entry, Mapping) else {"host": entry}

    def with_host(self, rank: int, key: str, value: Any) -> Draft:
        """Set a value for one host; None to decide from the host."""
        entries = list(self.data.get("hosts", ()))
        entries[rank] = _with_key(entries[rank], key, value)
        return self.put(("hosts",), entries)

    def with_job(self, kind: str, value: Any, args: Sequence[str] | None = None) -> Draft:
        """Set what to run and its arguments (None to keep them); folder and environment stay.

        A script in the current folder is sent to the hosts unless the draft has a folder on them.
        """
        job = {key: inner for key, inner in self.data.get("job", {}).items() if key not in JOB_KINDS}
        if args is not None:
            job["args"] = list(args)
        if kind == "command" or not job.get("args"):
            job.pop("args", None)
        if job.get("sync") == self.sent:
            job.pop("sync", None)
        draft = self.put(("job",), {kind: value, **job})
        if draft.sent and not job.get("workdir"):
            draft = draft.put(("job", "sync"), job.get("sync", draft.sent))
        return draft.without_idle()

    @property
    def sent(self) -> str | None:
        """The `job.sync` that sends the draft's script, if that is given relative to the current folder and there."""
        script = str(self.data.get("job", {}).get("script", ""))
        if script[:1] in ("", "/", "~") or not _is_file(script):
            return None
        sent, name = to_send(Path(script))
        return str(sent) if name == os.path.normpath(script) else None

    def without_idle(self) -> Draft:
        """Remove settings that do not apply to the job, because no step shows them."""
        if not self.divides_job:
            return self.put(("parallel",), None).put(("precision",), None)
        built_in = "builtin" in self.data.get("job", {})
        return self if built_in else self.put(("parallel", "pp"), None)  # Accelerate has no pipelines

    def put(self, path: tuple[str, ...], value: Any, **changes: Any) -> Draft:
        """Set one value; None or an empty value removes the key."""
        draft = replace(self, data=_put(self.data, path, value), **changes)
        return draft if draft.named else replace(draft, data={**draft.data, "name": _name(draft.data)})


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a name that is too long
        return False


@dataclass(frozen=True)
class HostCheck:
    """The state of one host's check."""

    name: str
    state: str
    """connecting, probing, ready, failed or left out."""
    facts: HostFacts | None = None
    link: Link | None = field(default=None, compare=False)
    error: DisttuiError | None = None

    @property
    def pending(self) -> bool:
        """Whether the check has not finished yet."""
        return self.state in ("connecting", "probing")


@dataclass(frozen=True)
class WizardState:
    """Everything that the steps show."""

    draft: Draft
    states: Mapping[str, HostCheck] = field(default_factory=dict)
    found: tuple[Discovered, ...] = ()
    planned: Planned | None = None
    queued: bool = False
    """Whether the run should wait for resources that others have leased."""
    may_wait: bool = False
    """Whether waiting for leased resources would avoid errors."""
    code: RunCode | DisttuiError | None = None
    """What `job.sync` would send, or why it cannot be sent; None if it sends nothing or has not been read."""

    def of_hosts(self) -> list[HostCheck]:
        """The states of the draft's hosts, in the draft's order."""
        return [self.states.get(name) or HostCheck(name, "connecting") for name in self.draft.hosts]

    @property
    def startable(self) -> bool:
        """Whether all hosts have answered and no error prevents the start."""
        answered = not any(state.pending for state in self.of_hosts())
        return answered and self.planned is not None and not self.planned.errors and not self.unsent

    @property
    def unsent(self) -> bool:
        """Whether the code cannot be sent."""
        return isinstance(self.code, DisttuiError)

    @property
    def stuck(self) -> bool:
        """Whether an error prevents the start, whatever the remaining hosts answer."""
        failed = any(state.error for state in self.of_hosts())
        forbidden = self.planned is not None and bool(self.planned.errors)
        return failed or bool(self.draft.problems) or self.unsent or forbidden

    def unusable(self, state: HostCheck) -> bool:
        """Whether a host has failed, or answered and cannot run the job."""
        return state.error is not None or bool(state.facts and self.errors(state))

    def errors(self, state: HostCheck) -> list[Finding]:
        """The known errors that prevent a start on a host that has answered."""
        if self.planned is not None:
            rank, plan = self.draft.hosts.index(state.name), self.planned.plan
            name = plan.hosts[rank].name if plan.batch is None and rank < len(plan.hosts) else state.name
            return [one for one in self.planned.findings if one.level == "error" and one.host == name]
        if state.facts is None or any(one.is_eligible for one in state.facts.interpreters):
            return []
        looked = ", ".join(one.path for one in state.facts.interpreters if one.source != "elsewhere")
        what = f"no torch in {looked}" if looked else "no Python found"
        return [Finding("error", state.name, what, "Install torch there, or set another Python in step 4")]


def new_draft() -> Draft:
    """The initial draft: the built-in job, without hosts."""
    return Draft({"disttui": 1, "hosts": [], "job": {"builtin": "bytegpt", "args": ["--steps", "300"]}})


def open_draft(found: ReadProfile, environ: Mapping[str, str]) -> Draft:
    """The draft of a profile, from its files exactly as they were read. An example loses its hosts, which are
    placeholders. Raises InputError."""
    text = found.text.replace("\r\n", "\n").replace("\r", "\n")
    profile = with_overrides(found.profile, (), personal=False)
    library = library_of(found.path, environ, as_given=True)
    if library and library.origin == "built in" and [host.host for host in profile.hosts] != ["local"]:
        return Draft({key: value for key, value in profile.as_written().items() if key not in ("name", "hosts")})
    if as_data(text) != profile.as_written():
        # Composed of several files or variables, so the result becomes a new profile.
        return Draft({"name": profile.name, **profile.rooted(profile.as_written())}, named=True)
    return Draft(dict(profile.as_written()), text, found.path, named=True)


def draft_again(again: Again) -> Draft:
    """The draft of a run to rerun: its original profile."""
    return Draft(dict(again.profile.as_written()), sandbox=again.sandbox, named=True, again=again)


def runnable(draft: Draft) -> Profile | None:
    """The profile as it would run from here; None while there are problems."""
    return None if draft.profile is None else as_run(draft.profile, sandbox=draft.sandbox)


def make_plan(view: WizardState, environ: Mapping[str, str]) -> Planned | None:
    """Recommend, plan and check; return None until all hosts have answered and the draft is valid."""
    profile = runnable(view.draft)
    facts = tuple(state.facts for state in view.of_hosts() if state.facts)
    if profile is None or len(facts) < len(profile.hosts):
        return None
    return plan_run(profile, facts, environ, queued=view.queued)


def may_wait(view: WizardState, environ: Mapping[str, str]) -> bool:
    """Whether the run would have fewer errors if it waited for other users' leases."""
    planned = view.planned
    if planned is None or view.queued or not planned.errors or planned.plan.batch is not None:
        return False
    if not any(one.reserved or any(gpu.lease for gpu in one.gpus) for one in planned.facts):
        return False
    later = make_plan(replace(view, queued=True), environ)
    return later is not None and len(later.errors) < len(planned.errors)


def asked_of(draft: Draft, name: str) -> Asked | None:
    """The probe's request for one host; None while there is no valid profile."""
    profile = runnable(draft)
    return Asked(profile, draft.hosts.index(name)) if profile and name in draft.hosts else None


def entry_name(entry: Any) -> str:
    """A host entry of the file, as a user would type it."""
    if not isinstance(entry, Mapping):
        return str(entry)
    host, user, port = str(entry.get("host", "")), entry.get("user"), entry.get("port")
    bracketed = f"[{host}]" if port and ":" in host else host
    return (f"{user}@" if user else "") + bracketed + (f":{port}" if port else "")


def _with_key(entry: Any, key: str, value: Any) -> Any:
    """A host entry with a key set, or removed if `value` is None; a plain name if no other keys remain."""
    given = dict(entry) if isinstance(entry, Mapping) else {"host": entry}
    if value is None:
        given.pop(key, None)
        return given if len(given) > 1 else given["host"]
    return {**given, key: value}


def _put(data: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    if rest:
        inner = data.get(key)
        value = _put(inner if isinstance(inner, Mapping) else {}, tuple(rest), value) or None
    if value in (None, "", {}) or (value == [] and key != "hosts"):
        return {name: inner for name, inner in data.items() if name != key}
    return {**data, key: value}


def _name(data: Mapping[str, Any]) -> str:
    """A default name for a profile, from the job's name and the number of hosts."""
    job = data.get("job", {})
    word = job.get("builtin") or Path(str(job.get("script") or "")).stem or job.get("module")
    word = word or next(iter(job.get("command") or ()), "")
    count = len(data.get("hosts", ()))
    return slug(f"{Path(str(word)).name or 'run'}-{count}node" if count > 1 else Path(str(word)).name or "run")


class Setting(NamedTuple):
    """A setting with a fixed set of values."""

    path: tuple[str, ...]
    """Its key in the profile."""
    words: tuple[str, ...]
    """Its values, the default first."""
    meaning: str = ""
    """The effect of the values; empty if the plan's reason explains it."""


SETTINGS: Mapping[str, Setting] = {
    "backend": Setting(("launch", "backend"), get_args(Backend)),
    "strategy": Setting(
        ("parallel", "strategy"), get_args(Strategy),
        "ddp: a whole model per rank; fsdp: one model sharded over all ranks; hsdp: sharded inside each host, a copy "
        "per host.",
    ),
    "precision": Setting(
        ("precision",), get_args(Precision),
        "fp32: full precision; bf16: for GPUs of compute capability 8.0 or more; fp16: for older ones, scaled loss.",
    ),
    "launcher": Setting(("launch", "launcher"), get_args(Launcher)),
}  # fmt: skip
FOR_THE_JOB = ("strategy", "precision")
"""Settings that apply only to some jobs: see `Draft.divides_job`."""


def chosen(draft: Draft, key: str) -> str:
    """The value of a setting in the draft, or its default."""
    path, words, _ = SETTINGS[key]
    inner: object = draft.data
    for part in path:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, str) and inner in words else words[0]


def with_choice(draft: Draft, key: str, word: str) -> Draft:
    """Set a setting (a default is not written), and remove settings that no longer apply to the job."""
    path, words, _ = SETTINGS[key]
    return draft.put(path, None if word == words[0] else word).without_idle()
