"""The profile as a typed, frozen model: one file describes the whole cluster and the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from runner.address import Address
from runner.profile import addresses, sizes
from runner.profile import fields as f
from runner.profile.nodes import MappingNode
from runner.profile.problems import Flaw, Path, ProfileErrors, ProfileProblem, SourceLocation, bad, conflicts, quoted
from runner.profile.references import Lookup, UnresolvedError, references, replaced
from runner.profile.sections import ACCELERATES, Host, Job, Launch, Metrics, Model, OnEnd, Parallel, Precision
from runner.profile.slurm import Slurm
from runner.profile.source import Source
from runner.train.layout import Sizes

VERSION = 1
MOST_HOSTS = 1024
_IN_SLURM = ("torchrun", "accelerate", "slurm")


def _version(value: Any) -> int:
    if value not in (VERSION, str(VERSION)):
        raise bad("no version of the schema", f"expected {VERSION}")
    return VERSION


class Profile(Model):
    """A whole profile. The order of the fields matters: a check sees what stands above it."""

    disttui: Annotated[Literal[1], BeforeValidator(_version)]
    """The version of the schema: 1."""
    name: f.RunName
    """Ids of runs begin with it; not given: the file's name."""
    description: f.Prose = ""
    """For people."""
    num_processes: f.Processes = None
    """Processes per machine, as torchrun's --nproc-per-node; auto: one for each GPU, or each core."""
    python: f.Python = None
    """The interpreter on the hosts; auto: the first that has torch of the login's python3, Conda's environments, and
    .venv, venv and env in `workdir` and in the home folder."""
    activate: f.Word = ""
    """A line for bash that is run first, in `workdir`, such as `conda activate x`; if it fails nothing is started."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """Variables of every rank; those of the job and of a host go over these."""
    hosts: tuple[Host, ...]
    """The machines, each as one word or as a mapping; node rank 0 is the first."""
    job: Job
    """What runs."""
    launch: Launch = Launch()
    """How it is started, watched and ended."""
    slurm: Annotated[Slurm | None, Field(validate_default=True)] = None
    """Run as a job of Slurm; `hosts` has its login node alone."""
    parallel: Parallel = Parallel()
    """How the built-in job's model is spread over the ranks."""
    precision: Annotated[Precision, f.one_of("auto", "fp32", "bf16", "fp16")] = "auto"
    """Of the built-in job, and of Accelerate by its launchers; auto: bf16 where all GPUs have it, else fp32."""
    metrics: Metrics = Metrics()
    """How metrics are read from a log of your own form."""
    on_end: OnEnd = OnEnd()
    """What is done when a run has ended, on the machine that started it; both get a summary as JSON, and 10 s."""

    _written: dict[str, Any] = PrivateAttr(default_factory=dict)
    _references: dict[Path, SourceLocation] = PrivateAttr(default_factory=dict)
    _sizes: dict[str | int, SourceLocation] = PrivateAttr(default_factory=dict)
    _sources: list[Source] = PrivateAttr(default_factory=list)
    _tree: list[MappingNode] = PrivateAttr(default_factory=list)
    _whole: list[tuple[MappingNode, MappingNode, str]] = PrivateAttr(default_factory=list)
    """What all files together say, before any override: without the user's own settings, and with them; and the name
    of the first file."""

    @property
    def tree(self) -> MappingNode | None:
        """What was checked, with the place of each value; None for a profile that was not read from a text."""
        return self._tree[0] if self._tree else None

    @property
    def sources(self) -> tuple[str, ...]:
        """The files that it was made of besides its own: those that it extends, and its inventory."""
        return tuple(each.path for each in self._sources)

    @property
    def read_from(self) -> tuple[Source, ...]:
        """The same files as they were when they were read."""
        return tuple(self._sources)

    @property
    def login(self) -> str:
        """The login node of Slurm, as it is written."""
        return self.hosts[0].label()

    def as_written(self) -> dict[str, Any]:
        """The file's data for JSON, `--set` included and references unresolved; reads back as the same profile."""
        return self._written

    def workdir(self, rank: int) -> str:
        """Where the job runs on the host of this node rank."""
        return self.hosts[rank].workdir or self.job.workdir

    def host_env(self, rank: int) -> dict[str, str]:
        """The environment of the host of this node rank, top level < job < host, references unresolved."""
        return {**self.common_env, **self.hosts[rank].env}

    @property
    def common_env(self) -> dict[str, str]:
        """The environment of a host that has nothing of its own in it."""
        return {**self.env, **self.job.env}

    @property
    def variables(self) -> list[str]:
        """The names of all variables that some host gets."""
        return list(dict.fromkeys([*self.common_env, *(name for host in self.hosts for name in host.env)]))

    def split_env(self, rank: int, lookup: Lookup) -> tuple[dict[str, str], dict[str, str]]:
        """The same as plain values, and as secret ones whose references were resolved: never to be stored.

        Args:
            lookup: The value of a reference, such as `SecretValues.value`.

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
                    what = f"{name} gets more than {f.LONGEST_WORD:,} bytes, which no program can be started with"
                    problems.append(ProfileProblem.at(self._place_of(rank, name), what))
        if problems:
            raise ProfileErrors(problems)
        return plain, secret

    def place_of_size(self, name: str) -> SourceLocation | None:
        """Where a key of `parallel` stands, None where it is not given."""
        return self._sizes.get(name)

    def _place_of(self, rank: int, name: str) -> SourceLocation:
        layers: tuple[Path, ...] = (("hosts", rank, "env", name), ("job", "env", name), ("env", name))
        return next((self._references[at] for at in layers if at in self._references), SourceLocation(self.name))

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
            common = ("num_processes", "python", "activate")
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
        if launch.master and hosts and launch.master != hosts[0].name and not addresses.is_ip(launch.master):
            others = [host.name for host in hosts[1:]]
            what = "is not the first host" if launch.master in others else "is no IP address and no host"
            expected = f"expected auto, an IP address or {hosts[0].name}, where node rank 0 runs"
            flaws.append((f"{quoted(launch.master)} {what}", expected, ("launch", "master")))
        job: Job | None = info.data.get("job")
        if launch.resume_args and job and job.builtin:
            flaws.append(("the built-in job resumes by itself", "remove it", ("launch", "resume_args")))
        if flaws:
            raise conflicts(flaws)
        return launch

    @field_validator("slurm")
    @classmethod
    def _check_slurm(cls, slurm: Slurm | None, info: ValidationInfo) -> Slurm | None:
        launch: Launch | None = info.data.get("launch")
        hosts: tuple[Host, ...] = info.data.get("hosts", ())
        if launch is None or not hosts:
            return slurm  # their own errors come first
        flaws = list(_slurm_flaws(slurm, launch, hosts))
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
        if job and job.builtin and (flaws := sizes.flaws(parallel, job, info.data.get("hosts", ()))):
            raise conflicts(flaws)
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
            flaws.append((what, "give one another name:", ("hosts", rank, "name")))
    return flaws


def _slurm_flaws(slurm: Slurm | None, launch: Launch, hosts: tuple[Host, ...]) -> Iterator[Flaw]:
    if slurm is None:
        if launch.launcher == "slurm":
            yield "slurm needs to know what to ask for", "add the section slurm: {nodes: 2}", ("launch", "launcher")
        return
    if len(hosts) > 1:
        yield "a job of Slurm has one login node", "expected one host; slurm.nodes says how many compute", ("hosts", 1)
    if hosts[0].gpus is not None:
        yield "Slurm chooses the GPUs", "say how many by slurm.gpus_per_node", ("hosts", 0, "gpus")
    if hosts[0].num_processes is None and not slurm.gpus_per_node:
        yield "num_processes is auto, and no GPU is asked for", "say how many ranks each node gets", ("slurm",)
    for name in ("address", "interface"):
        if getattr(hosts[0], name):
            what = f"the login node's {name} says nothing of the job's nodes"
            yield what, "remove it", ("hosts", 0, name)
    if launch.master:
        yield "the first node of the job is the master, wherever it is", "expected auto", ("launch", "master")
    if launch.launcher not in _IN_SLURM:
        what = f"{launch.launcher} has not been tried in a job of Slurm"
        yield what, f"expected {' or '.join(_IN_SLURM)}", ("launch", "launcher")


def _check_option(name: str, value: str, path: Path, data: Mapping[str, object], default: str = "auto") -> None:
    job, launch = data.get("job"), data.get("launch")
    if not isinstance(job, Job) or value == default:
        return
    accelerates = isinstance(launch, Launch) and launch.launcher in ACCELERATES
    if job.builtin is None and accelerates and name != "pp":
        return
    if job.builtin is None:
        what = f"{name} reaches the built-in job only"
        raise conflicts([(what, "remove it and give your own job an argument", path)])
    option = f"--{name.replace('_', '-')}"
    for index, word in enumerate(job.args):
        if word.partition("=")[0] == option:
            what = f"{option} is given here and as {'.'.join(map(str, path))}"
            raise conflicts([(what, "expected one of the two", ("job", "args", index))])
