"""The runs that this viewer knows: `run.json` and a mirror per host, in one folder per run (docs/formats.md)."""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.ids import pick, short
from disttui.runner.paths import PathError, inside
from disttui.runner.profile import leaks
from disttui.runner.profile.fields import slug
from disttui.runner.profile.load import parse
from disttui.runner.profile.resolve import SecretValues
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.protocol.files import Exit
from disttui.runner.protocol.names import FORMAT, RUN
from disttui.runner.protocol.regular import read_regular, regular
from disttui.runner.protocol.requests import Run
from disttui.runner.protocol.summary import summarize
from disttui.runner.runs.state import RunState, begin, job_nodes, outcome
from disttui.runner.runs.store import NO_ROOM, host_folder, lend, mirrors_folder
from disttui.runner.runs.summary import SANDBOX, SANDBOX_ENDED, RunStatus, Summary, end_of, summary_of
from disttui.runner.text import clean
from disttui.runner.untrusted.decode import decode
from disttui.runner.untrusted.records import LONGEST, json_object, mapping

_SEEN: Final = "seen.json"
_ENDS: Final = "ends.json"
_MIRRORED: Final = ("0/events.jsonl", "0/telemetry.jsonl", "0/exit.json")

_KINDS: Sequence[tuple[Any, Sequence[str]]] = (
    (str, ("run", "run_dir", "by", "problem")),
    (str | None, ("source", "ssh_config", "resume_from")),
    (int | float, ("started",)),
    (dict, ("profile", "template")),
    (bool, ("sandbox", "adopted")),
)
"""Types of the fields of run.json."""


@dataclass(frozen=True)
class KnownHost:
    """A host of a known run, with its address."""

    name: str
    host: str
    user: str | None = None
    port: int | None = None
    python: str | None = None
    nproc: int = 1
    transport: str | None = None

    @classmethod
    def of(cls, host: Host | KnownHost, name: str, nproc: int = 1) -> KnownHost:
        """A host of a run, reached in the same way as `host`."""
        return cls(name, host.host, host.user, host.port, host.python, nproc, host.transport)

    def as_host(self) -> Host:
        """The host as an entry of a profile."""
        given = {name: getattr(self, name) for name in ("host", "user", "port", "python", "transport")}
        host = Host.model_validate({key: value for key, value in given.items() if value is not None})
        return host.model_copy(update={"name": self.name})


@dataclass(frozen=True)
class KnownRun:
    """A run with a folder here."""

    run: str
    folder: Path
    """The mirror, with one folder per node rank."""
    hosts: tuple[KnownHost, ...]
    profile: Mapping[str, Any]
    """The profile as written, with `--set`, references unresolved."""
    run_dir: str
    started: float
    by: str
    source: str | None = None
    ssh_config: str | None = None
    sandbox: bool = False
    adopted: bool = False
    """Whether it was started elsewhere."""
    problem: str = ""
    """Why it could not be started."""
    resume_from: str | None = None
    """The hosts' folder with the checkpoints of the run that it continues."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The profile before its variables were filled in; empty if it has none, or if the run was started elsewhere."""
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The profile's name."""
        return clean(str(self.profile.get("name") or self.run.rpartition("-")[0]))

    def begin(self) -> RunState:
        """The run's initial state, before any record."""
        names, counts = tuple(host.name for host in self.hosts), tuple(host.nproc for host in self.hosts)
        state = begin(self.run, names, counts, one_way=self.one_way)
        return replace(state, problem=self.problem, lost=SANDBOX_ENDED if self.gone else "")

    @property
    def gone(self) -> bool:
        """Whether its hosts were removed with their sandbox, which holds a lock on its ssh configuration."""
        return self.sandbox and not (self.ssh_config and private.in_use(Path(self.ssh_config)))

    @property
    def one_way(self) -> bool:
        """Whether all its hosts are reached through one: a Slurm login node."""
        return len({(host.host, host.user, host.port) for host in self.hosts}) == 1

    def request(self) -> Run:
        """The arguments that identify the run to a node program."""
        return {"run": self.run, "run_dir": self.run_dir}

    def save(self) -> None:
        """Write run.json. Raises OSError."""
        private.make_folder(self.folder)
        skipped = ("folder", "warnings", "hosts")
        data = {name: value for name, value in vars(self).items() if name not in skipped}
        data |= {"disttui": FORMAT, "hosts": [vars(host) for host in self.hosts]}
        private.replace(self.folder / "run.json", json.dumps(data))

    def failed(self, why: str) -> None:
        """Store why the run could not be started."""
        with suppress(OSError):
            replace(self, problem=why).save()

    def summary(self, answers: Mapping[int, Summary] | None = None) -> RunStatus:
        """The run's summary from what is stored here, in the form of the `list` op; `state` may be "unknown".

        Args:
            answers: Node rank → what a host has just answered; stored first.
        """
        heard = {node: end for node, one in (answers or {}).items() if (end := end_of(one))}
        ends = {**self.ends(), **self.note_ends(heard)}
        seen = answers[min(answers)] if answers else self._seen()
        if answers and seen:
            self.note_seen(seen)
            self.note_removed(())
        try:
            read = summarize(str(self.folder / "0"), lambda: None) or {}
        except (OSError, ValueError, TypeError, AttributeError, OverflowError):
            read = {}
        mirrored = summary_of({**read, "run": self.run}) or Summary()
        stored = [mirrored, seen] if seen else [mirrored]
        later = seen if bool(answers) or self._changed(_SEEN) >= self._changed(*_MIRRORED) else mirrored
        newest = max(
            stored,
            key=lambda one: (bool(answers) and one is seen, one.get("attempt", 0), one.get("step", -1), one is later),
        )
        found: RunStatus = {
            "run": self.run, "by": self.by, "state": "unknown",
            "hosts": [host.name for host in self.hosts], "nproc": [host.nproc for host in self.hosts],
            **newest, "started": self.started, "name": self.name, "note": SANDBOX if self.sandbox else "",
        }  # fmt: skip
        end = outcome(ends, len(self.hosts), self.problem)
        found.pop("ended", None)
        if end:
            found |= {"state": end.get("state", "lost"), "ended": end.get("t", self.started), "alive": False}
            # A host may have been asked before the end.
            found.pop("silent", None)
            found.pop("cause", None)
            ended = summary_of({"run": self.run, "cause": end.get("cause")}) or {}
            found |= {"cause": ended["cause"]} if "cause" in ended else {}
        elif self.gone:
            found |= {"state": "lost", "note": SANDBOX_ENDED}
        elif names := self._removed():
            found |= {"state": "lost", "note": removed_words(names)}
        elif any(one.get("state") == "stopped" for one in ends.values()):
            found["state"] = "stopping"
        if found["state"] in ("stopping", "stopped") and (names := self.unconfirmed(ends)):
            found["note"] = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} not confirmed the stop"
        return found

    def ends(self) -> dict[int, Exit]:
        """How the run ended on each host, from the mirror, or otherwise from the host's answers."""
        noted = mapping((read_object(self.folder / _ENDS) or {}).get("ends"))
        seen = self._seen()
        found: dict[int, Exit] = {}
        for node in range(len(self.hosts)):
            answered = noted.get(str(node))
            if answered is None and seen and seen.get("node_rank") == node:
                answered = end_of(seen)
            with suppress(ValueError, PathError):
                found[node] = decode(Exit, read_object(inside(self.folder, str(node)) / "exit.json") or answered)
        return found

    @property
    def settled(self) -> bool:
        """Whether the run has ended and no host has yet to confirm a stop."""
        ends = self.ends()
        return self.gone or bool(outcome(ends, len(self.hosts), self.problem) and not self.unconfirmed(ends))

    def unconfirmed(self, ends: Mapping[int, Exit]) -> list[str]:
        """The hosts that a stop has not reached and that have not reported their end since."""
        noted = (read_object(self.folder / _ENDS) or {}).get("unconfirmed")
        nodes = noted if isinstance(noted, list) else []
        return [host.name for node, host in enumerate(self.hosts) if node in nodes and node not in ends]

    def note_ends(self, ends: Mapping[int, Exit], unconfirmed: Sequence[int] | None = None) -> Mapping[int, Exit]:
        """Store how the run ended on hosts, until the mirror has it; returns `ends`.

        Args:
            unconfirmed: The node ranks that a stop has not reached; None: no stop was requested.
        """
        noted = read_object(self.folder / _ENDS) or {}
        new = {**noted, "ends": {**mapping(noted.get("ends")), **{str(node): end for node, end in ends.items()}}}
        if unconfirmed is not None:
            new["unconfirmed"] = list(unconfirmed)
        if new != noted and (ends or unconfirmed):
            with suppress(OSError):
                private.replace(self.folder / _ENDS, json.dumps(new))
        return ends

    @property
    def heard(self) -> bool:
        """Whether a host has reported the run before: while a run is starting, its hosts do not have it yet."""
        mirrored = (inside(self.folder, str(node)) / "spec.json" for node in range(len(self.hosts)))
        return self._seen() is not None or any(path.exists() for path in mirrored)

    def note_removed(self, nodes: Sequence[int]) -> None:
        """Store the node ranks whose hosts no longer have the run; empty if a host has it."""
        noted = read_object(self.folder / _ENDS) or {}
        if noted.get("removed", []) != list(nodes):
            with suppress(OSError):
                private.replace(self.folder / _ENDS, json.dumps({**noted, "removed": list(nodes)}))

    def _removed(self) -> list[str]:
        noted = (read_object(self.folder / _ENDS) or {}).get("removed")
        return [host.name for node, host in enumerate(self.hosts) if isinstance(noted, list) and node in noted]

    def _seen(self) -> Summary | None:
        # A host's data must not decide which run this is.
        answered = read_object(self.folder / _SEEN)
        return summary_of({**answered, "run": self.run}) if answered else None

    def _changed(self, *names: str) -> float:
        """When the newest of these files was written; 0 if none exists."""
        times = [0.0]
        for name in names:
            with suppress(OSError, PathError):
                times.append(inside(self.folder, name).stat().st_mtime)
        return max(times)

    def note_seen(self, summary: Mapping[str, Any]) -> None:
        """Store the summary that a host has just answered."""
        with suppress(OSError):
            private.replace(self.folder / _SEEN, json.dumps(dict(summary)))


def removed_words(hosts: Sequence[str]) -> str:
    """Why a run is lost whose folder was removed on hosts."""
    return f"its run folder on {', '.join(map(clean, hosts))} was removed"


def whoami() -> str:
    """`alice@laptop`, for `by`."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


def keep(
    profile: Profile,
    counts: Sequence[int],
    run: str,
    environ: Mapping[str, str],
    **known: Any,
) -> KnownRun:
    """Create the folder of a run that is about to start, and return the run.

    Args:
        profile: Has the addresses of the hosts.
        counts: Processes on every host.
        known: Further fields of KnownRun.

    Raises:
        InputError: The folder cannot be written.
    """
    hosts = tuple(KnownHost.of(host, host.name, count) for host, count in zip(profile.hosts, counts, strict=True))
    known = {"run_dir": profile.launch.run_dir, "started": time.time(), "by": whoami(), **known}
    folder = inside(mirrors_folder(environ), run)
    written, template = profile.rooted(profile.as_written()), profile.template and profile.rooted(profile.template)
    return remember(KnownRun(run, folder, hosts, written, template=template, **known))


def remember(made: KnownRun) -> KnownRun:
    """Create the folder of a run. Raises InputError if it cannot be written."""
    try:
        made.save()
    except OSError as error:
        raise InputError(f"{made.folder}: {error.strerror}", _elsewhere(error)) from None
    return made


def make_folder(environ: Mapping[str, str]) -> None:
    """Create the folder of all runs, before any host is contacted. Raises InputError if that fails."""
    folder = mirrors_folder(environ)
    try:
        private.make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            why = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(why, os.strerror(why))
    except OSError as error:
        raise InputError(f"cannot store runs in {folder}: {error.strerror}", _elsewhere(error)) from None


def _elsewhere(error: OSError) -> str:
    room = "Free space there, or s" if error.errno in NO_ROOM else "S"
    return f"{room}et XDG_DATA_HOME to a writable folder."


def profile_of(run: KnownRun, overrides: Sequence[str] = ()) -> Profile:
    """The profile of a run, parsed again; one without a name gets the run's. Raises ProfileErrors."""
    profile = parse(json.dumps(run.template or run.profile), f"profile of {run.run}", overrides)
    if "name" in profile.as_written():
        return profile
    return profile.model_copy(update={"name": slug(run.run.rpartition("-")[0])})


@contextmanager
def mirror_of(run: KnownRun) -> Iterator[Path]:
    """The folder to mirror a run into: its own, or a temporary one with its files while another viewer here uses that.

    Raises InputError if it cannot be written, or was deleted since the run was found.
    """
    with ExitStack() as stack:
        try:
            if not run.folder.is_dir():
                raise InputError(f"{short(run.run)} was deleted on this machine: {run.folder} does not exist")
            lock = stack.enter_context(os.fdopen(regular(run.folder / ".viewer", os.O_RDWR | os.O_CREAT)))
            held = _locked(lock.fileno())
            passing, handle = _passing_mirror(run.folder.parent.parent / "mirrors", make=not held)
        except OSError as error:
            where = error.filename or run.folder
            raise InputError(f"cannot write {where}: {error.strerror}", _elsewhere(error)) from None
        if passing is None:
            yield run.folder
            return
        try:
            for node in range(len(run.hosts)):
                with suppress(PathError):
                    lend(host_folder(run.folder, node), host_folder(passing, node))
            yield passing
        finally:
            shutil.rmtree(passing, ignore_errors=True)
            os.close(handle)


def _passing_mirror(mirrors: Path, *, make: bool) -> tuple[Path | None, int]:
    """Remove the temporary mirrors that killed viewers have left; create one, and hold its lock."""
    private.make_folder(mirrors)
    with os.fdopen(regular(mirrors / ".lock", os.O_RDWR | os.O_CREAT)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in mirrors.iterdir():
            with suppress(OSError):
                handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                if _locked(handle):
                    shutil.rmtree(left, ignore_errors=True)
                os.close(handle)
        if not make:
            return None, -1
        made = Path(tempfile.mkdtemp(dir=mirrors))
        handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return made, handle


def _locked(handle: int) -> bool:
    """Try to lock the file, and return whether that succeeded."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def known_runs(environ: Mapping[str, str]) -> tuple[list[KnownRun], list[str]]:
    """Every run with a readable run.json here, newest first, and the problems of the others."""
    runs, problems = [], []
    try:
        names = _names(mirrors_folder(environ))
    except OSError as error:
        return [], [f"cannot list the runs in {mirrors_folder(environ)}: {error.strerror}"]
    for name in names:
        try:
            runs.append(load_run(inside(mirrors_folder(environ), name)))
        except InputError as error:
            problems.append(f"{error.sentence}. Remove it: disttui runs forget --here {name}")
    return sorted(runs, key=lambda run: -run.started), problems


def run_names(environ: Mapping[str, str]) -> list[str]:
    """The ids of all runs that have a readable folder here."""
    mirrors = mirrors_folder(environ)
    try:
        return [name for name in _names(mirrors) if os.access(inside(mirrors, name), os.X_OK)]
    except OSError:
        return []


def _names(mirrors: Path) -> list[str]:
    """The ids of the runs in this folder, including unreadable ones. Raises OSError."""
    try:
        folders = [path for path in mirrors.iterdir() if RUN.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(path.name for path in folders if os.path.lexists(path / "run.json") or not os.access(path, os.X_OK))


def load_run(folder: Path) -> KnownRun:
    """Read a run's run.json. Raises InputError if it is missing, broken or from a newer disttui."""
    path = folder / "run.json"
    try:
        data = json_object(read_regular(path, LONGEST))
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", _anew(folder.name), place=f"{path}") from None
    if data is None:
        raise InputError("missing or damaged", _anew(folder.name), place=f"{path}")
    refuse_newer(data, f"{path}")
    try:
        hosts = tuple(KnownHost(**{key: host.get(key) for key in KnownHost.__match_args__}) for host in data["hosts"])
        for host in hosts:
            host.as_host()
        wrong = any(not isinstance(data[name], kind) for kind, names in _KINDS for name in names if name in data)
        if wrong or not all(isinstance(host.nproc, int) and isinstance(host.name, str) for host in hosts):
            raise TypeError
        hosts = tuple(replace(host, name=clean(host.name)) for host in hosts)
        names = [name for name in KnownRun.__match_args__ if name in data and name not in ("folder", "hosts")]
        run = KnownRun(folder=folder, hosts=hosts, **{name: data[name] for name in names})
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError("not a run.json", _anew(folder.name), place=f"{path}") from None
    if run.run != folder.name or not hosts:
        raise InputError(f"not a run.json of {folder.name}", _anew(folder.name), place=f"{path}")
    return _with_nodes(run) if run.one_way else run


def _with_nodes(run: KnownRun) -> KnownRun:
    """The run with the names of the nodes assigned to its Slurm job, as written by node rank 0."""
    names = job_nodes(read_object(run.folder / "0" / "spec.json") or {}, len(run.hosts))
    hosts = (replace(host, name=name) for host, name in zip(run.hosts, names, strict=False))
    return replace(run, hosts=tuple(hosts)) if names else run


def _anew(run: str) -> str:
    remove = f"disttui runs forget --here {short(run)}"
    return f"Fetch it again: disttui attach {short(run)} --host HOST; or remove it: {remove}"


def refuse_newer(data: Mapping[str, object], where: str) -> None:
    """Raise InputError for data written by a newer disttui."""
    version = data.get("disttui")
    if isinstance(version, int) and version > FORMAT:
        raise InputError(
            f"{where}: written by a newer disttui (format {version}, this one reads {FORMAT})", "Upgrade disttui."
        )


def refuse_sandbox(run: KnownRun) -> None:
    """Raise InputError for a run of a sandbox whose hosts are gone."""
    if run.gone:
        raise InputError(
            f"{short(run.run)} ran in a sandbox, which ended with its command",
            "Its records are here: disttui runs show, logs, metrics.",
        )


def find_run(text: str, environ: Mapping[str, str]) -> KnownRun:
    """The run with this id or prefix of one. Raises InputError, which lists similar ids."""
    run = load_run(folder_of(text, environ))
    mask_secrets(run, environ)
    return run


def mask_secrets(run: KnownRun, environ: Mapping[str, str]) -> None:
    """Mask the secrets that a run's profile refers to, if this user still has them, and what looks like a secret."""
    SecretValues(environ).know(_texts(run.profile), files=not run.adopted)
    leaks.mask(run.profile)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def folder_of(text: str, environ: Mapping[str, str]) -> Path:
    """The folder of the run with this id or prefix, readable or not. Raises InputError, which lists similar ids."""
    return inside(mirrors_folder(environ), pick(text, run_names(environ)))


def is_mirror(folder: Path) -> bool:
    """Whether a folder mirrors a run, wherever it is."""
    return os.path.exists(folder / "run.json") or os.path.isdir(folder / "0")  # noqa: PTH110, PTH112 - never raises


def is_known(text: str, environ: Mapping[str, str]) -> bool:
    """Whether a text is, or is a prefix of, the id of a run that has a folder here."""
    return any(name.startswith(text) for name in run_names(environ)) if text else False


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file or object."""
    try:
        return json_object(read_regular(path, LONGEST))
    except OSError:
        return None
