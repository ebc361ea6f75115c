"""The profile as a typed, frozen model: one file describes the whole cluster and the job."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from disttui.runner.address import Address
from disttui.runner.paths import expanded
from disttui.runner.profile import fields as f
from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode, Source
from disttui.runner.profile.problems import (
    Flaw,
    Path,
    ProfileErrors,
    ProfileProblem,
    SourceLocation,
    bad,
    conflicts,
    quoted,
)
from disttui.runner.profile.references import Lookup, UnresolvedError, references, replaced
from disttui.runner.profile.sections import (
    ACCELERATES,
    MOST_DATA,
    Container,
    Data,
    Host,
    Job,
    Launch,
    Metrics,
    Model,
    Notify,
    NotifyEvent,
    OnEnd,
    Parallel,
    Precision,
    Slurm,
    Watch,
)
from disttui.runner.protocol.files import NotifyTarget
from disttui.runner.train.layout import Flaw as SizeFlaw
from disttui.runner.train.layout import Sizes, link_flaws, model_flaws, settle, strategy_flaws
from disttui.runner.train.options import Options, parse
from disttui.runner.train.problem import Problem


def asked(parallel: Parallel, options: Options) -> tuple[Sizes, str]:
    """Sizes and strategy of the profile, or else of the job's arguments."""
    pairs = {name: getattr(parallel, name) or getattr(options, name) for name in Sizes._fields}
    return Sizes(**pairs), parallel.strategy if parallel.strategy != "auto" else options.strategy


def link_options(parallel: Parallel, options: Options) -> tuple[int, str]:
    """`sync_interval` and `compress` of the profile, or else of the job's arguments."""
    compress = parallel.compress if parallel.compress != "none" else options.compress
    return parallel.sync_interval if parallel.sync_interval > 1 else options.sync_interval, compress


def size_flaws(parallel: Parallel, job: Job, hosts: Sequence[Host]) -> list[Flaw]:
    """All flaws of the parallel sizes. Their product is checked only if every host has a process count."""
    try:
        options = parse(job.args)
    except Problem:
        return []  # preflight reports what is wrong with the arguments
    sizes, strategy = asked(parallel, options)
    sync_interval, compress = link_options(parallel, options)
    found: dict[Path, Flaw] = {}
    spared = link_flaws(sizes, strategy, sync_interval=sync_interval, compress=compress)
    for flaw in (*_size_flaws(sizes, strategy, options, hosts), *spared):
        place = _place(flaw.key, parallel, job)
        found.setdefault(place, (flaw.what, flaw.cure, place))
    return list(found.values())


def _size_flaws(sizes: Sizes, strategy: str, options: Options, hosts: Sequence[Host]) -> Iterator[SizeFlaw]:
    yield from strategy_flaws(sizes, strategy)
    yield from model_flaws(sizes, layers=options.layers, heads=options.heads, context=options.context)
    counts = [host.num_processes for host in hosts if host.num_processes]
    if counts and len(counts) == len(hosts) and isinstance(flaw := settle(sizes, strategy, counts), SizeFlaw):
        yield flaw


def _place(key: str, parallel: Parallel, job: Job) -> Path:
    if key in parallel.model_fields_set and getattr(parallel, key):
        return ("parallel", key)
    option = f"--{key.replace('_', '-')}"
    return ("job", "args", next((at for at, word in enumerate(job.args) if word.partition("=")[0] == option), 0))


VERSION = 1
MOST_HOSTS = 1024
NOTIFY_KINDS: tuple[Literal["webhook", "slack", "discord", "ntfy", "email"], ...] = (
    "webhook", "slack", "discord", "ntfy", "email",
)  # fmt: skip
_IN_SLURM = ("torchrun", "accelerate", "slurm")


def _version(value: Any) -> int:
    if value not in (VERSION, str(VERSION)):
        raise bad("unknown schema version", f"expected {VERSION}")
    return VERSION


class Profile(Model):
    """A whole profile. The order of the fields matters: validators only see the fields above them."""

    disttui: Annotated[Literal[1], BeforeValidator(_version)]
    """Version of the schema: 1."""
    name: f.RunName
    """Beginning of its runs' ids; default: the file's name."""
    description: f.Prose = ""
    """For people."""
    num_processes: f.Processes = None
    """Processes per host, as --nproc-per-node; auto: one per GPU, or per core."""
    python: f.Python = None
    """Interpreter on the hosts; auto: the first with torch of python3, Conda's environments, .venv, venv and env in
    `workdir` and the home folder."""
    activate: f.Word = ""
    """First line for bash, in `workdir`, such as `conda activate x`; if it fails, nothing starts."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """Variables of every rank; the job's and a host's override them."""
    transport: f.Transport | None = None
    """ssh: the ssh program, for Kerberos, hardware keys, ControlMasters; default: your config's, else builtin."""
    hosts: tuple[Host, ...]
    """The machines; the first is node rank 0."""
    job: Job
    """What runs."""
    data: Annotated[tuple[Data, ...], f.few(MOST_DATA)] = ()
    """Files that every host gets before the ranks start; each is copied once."""
    container: Container | None = None
    """Run in a container on every host."""
    launch: Launch = Launch()
    """How it is started, supervised and ended."""
    slurm: Annotated[Slurm | None, Field(validate_default=True)] = None
    """Run as a job of Slurm; `hosts` is its login node."""
    parallel: Parallel = Parallel()
    """How the built-in job's model is spread."""
    precision: Annotated[Precision, f.one_of("auto", "fp32", "bf16", "fp16")] = "auto"
    """For the built-in job and Accelerate's launchers; auto: bf16 if all GPUs have it, else fp32."""
    metrics: Metrics = Metrics()
    """How to read a log of your own form."""
    on_end: OnEnd = OnEnd()
    """Actions of the starting machine once a disttui there sees the run's end; each gets a JSON summary and
    10 s."""
    watch: Watch = Watch()
    """What hosts watch for during training."""
    notify: Notify = Notify()
    """Where the hosts send notifications; default: `notifications` in your config."""

    _written: dict[str, Any] = PrivateAttr(default_factory=dict)
    _template: dict[str, Any] = PrivateAttr(default_factory=dict)
    _sources: list[Source] = PrivateAttr(default_factory=list)
    _tree: list[MappingNode] = PrivateAttr(default_factory=list)
    _whole: list[tuple[MappingNode, MappingNode, str]] = PrivateAttr(default_factory=list)
    """(merged files without and with the user's own settings, name of the profile's file); before overrides."""

    @property
    def tree(self) -> MappingNode | None:
        """The checked nodes with their source locations; None if the profile was not parsed from text."""
        return self._tree[0] if self._tree else None

    @property
    def read_from(self) -> tuple[Source, ...]:
        """The other files of the profile as read: those it extends, inventories and the user's own settings."""
        return tuple(self._sources)

    @property
    def login(self) -> str:
        """The full address of Slurm's login node."""
        return self.hosts[0].label()

    def as_written(self) -> dict[str, Any]:
        """The profile's data for JSON, with `--set` and unresolved references; parses to the same profile."""
        return self._written

    @property
    def template(self) -> dict[str, Any]:
        """The profile's data before variables were replaced; empty without variables."""
        return self._template

    def workdir(self, rank: int) -> str:
        """The job's folder on the host of a node rank; with `job.sync`, RUN is a placeholder for the run's id."""
        if self.job.sync:
            return self.job.sync.folder(self.launch.run_dir, "RUN")
        return self.hosts[rank].workdir or self.job.workdir

    @property
    def enclosed(self) -> str:
        """The container image or wrapper of the job, which the probe does not enter; empty if it has none."""
        return self.container.image if self.container else self.job.wrap[0] if self.job.wrap else ""

    @property
    def sync_source(self) -> FilePath | None:
        """The local folder that `job.sync` sends, or None."""
        return self.local_path(self.job.sync.source, "job", "sync", "from") if self.job.sync else None

    def local_path(self, path: str, *keys: str | int) -> FilePath:
        """The local `path` at `keys`; relative paths are resolved against the folder of the file that has them."""
        nodes = (self._node(*keys[: len(keys) - up]) for up in range(len(keys)))
        above = next((FilePath(node.place.source).parent for node in nodes if node and node.place.line), FilePath())
        return above / expanded(path)

    def rooted(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """`data`, as written or as a template, with absolute local paths: it means the same wherever it is read."""
        found = copy.deepcopy(dict(data))

        def root(within: Any, key: str | int, *above: str | int) -> None:
            word = within.get(key, ".") if isinstance(within, dict) else within[key]
            if isinstance(word, str) and "${" not in word and word[:1] != "~":
                within[key] = str(self.local_path(word, *above, key).absolute())

        job = found.get("job")
        for name in ("sync", "environment"):
            value = job.get(name) if isinstance(job, dict) else None
            if isinstance(value, str):
                root(job, name, "job")
            elif isinstance(value, dict):
                for key in ("from", *(["wheels"] if "wheels" in value else [])):
                    root(value, key, "job", name)
        for index, one in enumerate(self.data):
            if not (one.is_address or one.host_path[0]):
                root(found["data"][index], "from", "data", index)
        return found

    def host_env(self, rank: int) -> dict[str, str]:
        """The environment of the host of a node rank, references unresolved; host overrides job, job the profile."""
        return {**self.common_env, **self.hosts[rank].env}

    @property
    def common_env(self) -> dict[str, str]:
        """The environment of hosts without an `env` of their own, references unresolved."""
        return {**self.env, **self.job.env}

    @property
    def variables(self) -> list[str]:
        """Names of all environment variables of all hosts."""
        return list(dict.fromkeys([*self.common_env, *(name for host in self.hosts for name in host.env)]))

    def split_env(self, rank: int, lookup: Lookup) -> tuple[dict[str, str], dict[str, str]]:
        """Split `host_env` into plain values, and secret ones with resolved references, which must not be stored.

        Args:
            lookup: Returns the value of a reference, such as `SecretValues.value`.

        Raises:
            ProfileErrors: References have no usable value.
        """
        plain, secret, problems = {}, {}, []
        for name, value in self.host_env(rank).items():
            wanted = references(value)
            if not wanted:
                plain[name] = value
                continue
            found = {}
            for reference in wanted:
                try:
                    found[reference] = lookup(reference)
                except UnresolvedError as error:
                    problems.append(ProfileProblem.at(self._place_of(rank, name), str(error)))
            if len(found) == len(set(wanted)):
                secret[name] = replaced(value, found.__getitem__)
                if len(secret[name].encode()) > f.LONGEST_WORD:
                    what = f"{name} is longer than {f.LONGEST_WORD:,} bytes: no program can start with it"
                    problems.append(ProfileProblem.at(self._place_of(rank, name), what))
        if problems:
            raise ProfileErrors(problems)
        return plain, secret

    def resolved_notify(self, default: Notify | None, lookup: Lookup) -> list[NotifyTarget]:
        """The notification targets with resolved references, which must not be stored.

        Args:
            default: The user's own targets, for kinds that the profile does not set.
            lookup: As for `split_env`.

        Raises:
            ProfileErrors: A reference has no value, or its value is not an address.
        """
        own = self.notify.model_fields_set
        chosen = self.notify if default is None or "events" in own else default
        found: list[NotifyTarget] = []
        problems = []
        for kind in NOTIFY_KINDS:
            given = getattr(self.notify, kind) or (getattr(default, kind) if default and kind not in own else None)
            if given is None:
                continue
            try:
                url = replaced(given, lookup)
                (f.check_mail if kind == "email" else f.check_url)(url)
            except UnresolvedError as error:
                problems.append(ProfileProblem.at(SourceLocation(self.name), f"notify.{kind}: {error}"))
            except PydanticCustomError:
                what = f"notify.{kind}: the value of {given} is not an address"
                problems.append(ProfileProblem.at(SourceLocation(self.name), what))
            else:
                found.append({"kind": kind, "url": url, "events": list(chosen.events or get_args(NotifyEvent))})
        if problems:
            raise ProfileErrors(problems)
        return found

    def place_of_size(self, name: str) -> SourceLocation | None:
        """The location of a key of `parallel`, or None if it is not set."""
        node = self._node("parallel", name)
        return node.place if node else None

    def _place_of(self, rank: int, name: str) -> SourceLocation:
        layers: tuple[Path, ...] = (("hosts", rank, "env", name), ("job", "env", name), ("env", name))
        nodes = (self._node(*path) for path in layers)
        found = (node.reference for node in nodes if isinstance(node, ScalarNode) and node.reference)
        return next(found, SourceLocation(self.name))

    def _node(self, *path: str | int) -> Node | None:
        """The node at a path of the merged files, or None."""
        node: Node | None = self.tree
        for key in path:
            if isinstance(node, SequenceNode) and isinstance(key, int):
                node = next(iter(node.items[key : key + 1]), None)
            else:
                node = node.entries.get(str(key), (None, None))[1] if isinstance(node, MappingNode) else None
        return node

    @field_validator("hosts")
    @classmethod
    def _settle_hosts(cls, hosts: tuple[Host, ...], info: ValidationInfo) -> tuple[Host, ...]:
        if not hosts:
            raise bad("no hosts", "expected at least one, like [node1] or [local]")
        if len(hosts) > MOST_HOSTS:
            raise bad(f"{len(hosts):,} hosts", f"expected at most {MOST_HOSTS:,}")
        names = [host.host for host in hosts]
        settled = []
        for host in hosts:
            common = ("num_processes", "python", "activate", "transport")
            update = {key: info.data.get(key) for key in common if key not in host.model_fields_set}
            update["name"] = host.name or (host.host if names.count(host.host) == 1 else host.label())
            settled.append(host.model_copy(update=update))
        if flaws := [*_twice(settled)]:
            raise conflicts(flaws)
        return tuple(settled)

    @field_validator("launch")
    @classmethod
    def _check_launch(cls, launch: Launch, info: ValidationInfo) -> Launch:
        hosts: tuple[Host, ...] = info.data.get("hosts", ())
        flaws: list[Flaw] = []
        if len(hosts) > 1 and launch.ports[0] == launch.ports[1]:
            flaws.append(("one port", "expected two or more: the gang and torch take one each", ("launch", "ports")))
        if launch.master and hosts and launch.master != hosts[0].name and not f.is_ip(launch.master):
            others = [host.name for host in hosts[1:]]
            what = "is not the first host" if launch.master in others else "is neither an IP address nor a host"
            expected = f"expected auto, an IP address or {hosts[0].name}, where node rank 0 runs"
            flaws.append((f"{quoted(launch.master)} {what}", expected, ("launch", "master")))
        job: Job | None = info.data.get("job")
        if launch.resume_args and job and job.builtin:
            flaws.append(("the built-in job resumes automatically", "remove it", ("launch", "resume_args")))
        if flaws:
            raise conflicts(flaws)
        return launch

    @field_validator("data")
    @classmethod
    def _check_data(cls, data: tuple[Data, ...], info: ValidationInfo) -> tuple[Data, ...]:
        names = {host.name for host in info.data.get("hosts", ())}
        flaws: list[Flaw] = []
        for index, one in enumerate(data):
            if (name := one.host_path[0]) and names and name not in names:
                expected = f"expected one of {', '.join(sorted(names)[:8])}, or ./{name}:… for a local path"
                flaws.append((f"{quoted(name)} is not a host of the profile", expected, ("data", index, "from")))
            if any(f"{one.to}/".startswith(f"{other.to}/") for other in data[:index] + data[index + 1 :]):
                what = f"{quoted(one.to)} is, or is inside, the path of other data"
                flaws.append((what, "choose another path", ("data", index, "to")))
        if flaws:
            raise conflicts(flaws)
        return data

    @field_validator("container")
    @classmethod
    def _check_container(cls, container: Container | None, info: ValidationInfo) -> Container | None:
        if container and any(host.activate for host in info.data.get("hosts", ())):
            cure = "remove activate: the image has its own environment"
            raise conflicts([("activate would run outside the container", cure, ("container",))])
        job: Job | None = info.data.get("job")
        if container and job and job.environment:
            cure = "remove it, and choose an image with the packages"
            raise conflicts([("environment would be installed outside the container", cure, ("job", "environment"))])
        return container

    @field_validator("watch")
    @classmethod
    def _check_watch(cls, watch: Watch, info: ValidationInfo) -> Watch:
        launch: Launch | None = info.data.get("launch")
        if launch is None or launch.restarts:
            return watch
        flaws: list[Flaw] = [
            (f"{rule['do']} needs another attempt", "set launch.restarts to 1 or more", ("watch", rule["rule"]))
            for rule in watch.rules()
            if rule["do"] in ("restart", "rollback")
        ]
        if flaws:
            raise conflicts(flaws)
        return watch

    @field_validator("slurm")
    @classmethod
    def _check_slurm(cls, slurm: Slurm | None, info: ValidationInfo) -> Slurm | None:
        launch: Launch | None = info.data.get("launch")
        hosts: tuple[Host, ...] = info.data.get("hosts", ())
        if launch is None or not hosts:
            return slurm  # their own errors are reported instead
        flaws = list(_slurm_flaws(slurm, launch, hosts))
        job: Job | None = info.data.get("job")
        for name in ("environment", "setup") if slurm and job else ():
            if getattr(job, name):
                what = f"{name} is not supported on the nodes of a Slurm job"
                flaws.append((what, "remove it, and use activate", ("job", name)))
        if flaws:
            raise conflicts(flaws)
        return slurm

    @field_validator("parallel")
    @classmethod
    def _check_parallel(cls, parallel: Parallel, info: ValidationInfo) -> Parallel:
        _check_option("strategy", parallel.strategy, ("parallel", "strategy"), info.data)
        for name in Sizes._fields:
            _check_option(name, str(getattr(parallel, name) or "auto"), ("parallel", name), info.data)
        _check_option("sync_interval", str(parallel.sync_interval), ("parallel", "sync_interval"), info.data, "1")
        _check_option("compress", parallel.compress, ("parallel", "compress"), info.data, "none")
        job: Job | None = info.data.get("job")
        if job and job.builtin and (found := size_flaws(parallel, job, info.data.get("hosts", ()))):
            raise conflicts(found)
        return parallel

    @field_validator("precision")
    @classmethod
    def _check_precision(cls, precision: Precision, info: ValidationInfo) -> Precision:
        _check_option("precision", precision, ("precision",), info.data)
        return precision


def _twice(hosts: list[Host]) -> list[Flaw]:
    flaws: list[Flaw] = []
    endpoints: dict[Address, int] = {}
    names: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        if (first := endpoints.setdefault(host.endpoint, rank)) != rank:
            flaws.append((f"the host {host.label()} is listed twice", f"first as hosts.{first}", ("hosts", rank)))
        elif (first := names.setdefault(host.name, rank)) != rank:
            what = f"two hosts are named {quoted(host.name)}"
            flaws.append((what, "rename one:", ("hosts", rank, "name")))
    return flaws


def _slurm_flaws(slurm: Slurm | None, launch: Launch, hosts: tuple[Host, ...]) -> Iterator[Flaw]:
    if slurm is None:
        if launch.launcher == "slurm":
            yield "launcher slurm needs the section slurm", "add slurm: {nodes: 2}", ("launch", "launcher")
        return
    if len(hosts) > 1:
        yield (
            "a Slurm job has one login node",
            "expected one host; slurm.nodes sets the number",
            ("hosts", 1),
        )
    if hosts[0].gpus is not None:
        yield "Slurm chooses the GPUs", "set the number with slurm.gpus_per_node", ("hosts", 0, "gpus")
    if hosts[0].num_processes is None and not slurm.gpus_per_node:
        yield (
            "num_processes is auto, but slurm.gpus_per_node is not set",
            "set the number of ranks per node",
            ("slurm",),
        )
    for name in ("address", "interface"):
        if getattr(hosts[0], name):
            what = f"the login node's {name} does not apply to the job's nodes"
            yield what, "remove it", ("hosts", 0, name)
    if launch.master:
        yield "the master is always the job's first node", "expected auto", ("launch", "master")
    if launch.launcher not in _IN_SLURM:
        what = f"{launch.launcher} has not been tried in a Slurm job"
        yield what, f"expected {' or '.join(_IN_SLURM)}", ("launch", "launcher")


def _check_option(name: str, value: str, path: Path, data: Mapping[str, object], default: str = "auto") -> None:
    job, launch = data.get("job"), data.get("launch")
    if not isinstance(job, Job) or value == default:
        return
    accelerates = isinstance(launch, Launch) and launch.launcher in ACCELERATES
    if job.builtin is None and accelerates and name != "pp":
        return
    if job.builtin is None:
        what = f"{name} applies only to the built-in job"
        raise conflicts([(what, "remove it, and use an argument of your own job", path)])
    option = f"--{name.replace('_', '-')}"
    for index, word in enumerate(job.args):
        if word.partition("=")[0] == option:
            what = f"{option} is given here and as {'.'.join(map(str, path))}"
            raise conflicts([(what, "expected one of the two", ("job", "args", index))])
