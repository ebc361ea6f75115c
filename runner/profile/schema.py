"""The profile as typed, frozen models: one file describes the whole cluster and the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from runner.profile import addresses
from runner.profile import fields as f
from runner.profile.numbers import whole
from runner.profile.problems import Flaw, Path, Place, ProfileErrors, ProfileProblem, bad, conflicts, show
from runner.transport.base import Address

VERSION = 1

Strategy = Literal["auto", "ddp", "fsdp"]
Precision = Literal["auto", "fp32", "bf16"]
Backend = Literal["auto", "nccl", "gloo"]


class Target(NamedTuple):
    """What every rank runs. For a `command`, `value` is its first word and `args` the rest."""

    kind: Literal["builtin", "script", "module", "command"]
    value: str
    args: tuple[str, ...]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(_Model):
    """One machine. `num_processes`, `python` and `activate` are effective: the profile's where not given here."""

    host: f.HostText
    """The ssh alias, name or IP address; `local` for this machine."""
    name: f.HostName = ""
    """Its label, unique in the profile."""
    user: f.User | None = None
    port: f.Port | None = None
    num_processes: f.Processes = None
    """None: decided from what the probe finds."""
    gpus: f.Gpus = None
    """Indices of the GPUs to use; empty: none; None: decided from what the probe finds."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """This host's own variables only; `Profile.host_env` has all layers."""
    python: f.Python = None
    """None: found by the probe."""
    activate: f.Text = ""
    workdir: f.Folder | None = None
    """None: the job's."""
    address: f.Ip = None
    """The IP address that the other hosts reach it by; None: found out."""
    interface: f.Interface = None
    """None: the one that routes to the master."""

    @property
    def endpoint(self) -> Address:
        """Where to connect to."""
        return Address(self.host, self.user, self.port)

    @model_validator(mode="before")
    @classmethod
    def _take_apart(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"host": data}
        if not isinstance(data, dict) or not isinstance(data.get("host"), str):
            return data
        try:
            user, host, port = addresses.split_host(data["host"])
        except PydanticCustomError:
            return data  # the field itself will say what is wrong
        found = {"user": user, "port": port}
        if twice := [key for key, value in found.items() if value is not None and key in data]:
            raise bad(f"the {twice[0]} is given twice", "expected it once")
        return {**data, "host": host, **{key: value for key, value in found.items() if value is not None}}

    @model_validator(mode="after")
    def _check_local(self) -> Host:
        if self.host == "local" and (self.user or self.port):
            raise bad("'local' is this machine, without SSH", "write localhost to reach it by user and port")
        return self

    def label(self) -> str:
        """Its full address as text."""
        host = f"[{self.host}]" if ":" in self.host and self.port else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


class Job(_Model):
    """What runs: exactly one of `builtin`, `script`, `module` and `command`."""

    builtin: Annotated[Literal["bytegpt"], f.one_of("bytegpt")] | None = None
    script: f.Filled | None = None
    module: f.Module | None = None
    command: tuple[f.Text, ...] | None = None
    args: tuple[f.Text, ...] = ()
    workdir: f.Folder = "~"
    env: Mapping[f.EnvName, f.EnvValue] = {}
    wrap: tuple[f.Text, ...] = ()
    setup: f.NotBuilt = None
    sync: f.NotBuilt = None

    @property
    def target(self) -> Target:
        """What every rank runs, as spec.json has it."""
        if self.command:
            return Target("command", self.command[0], self.command[1:])
        if self.builtin:
            return Target("builtin", self.builtin, self.args)
        return (
            Target("script", self.script, self.args) if self.script else Target("module", self.module or "", self.args)
        )

    @model_validator(mode="after")
    def _check_one(self) -> Job:
        kinds = ("builtin", "script", "module", "command")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        expected = "expected exactly one of builtin, script, module and command"
        if len(given) != 1:
            raise bad(f"{' and '.join(given)} are given" if given else "it names nothing to run", expected)
        if self.command is not None and (not self.command or not self.command[0]):
            raise conflicts([("the command is empty", "expected a list of words", ("job", "command"))])
        if self.command and self.args:
            raise conflicts([("a command has its arguments in its own list", "move them", ("job", "args"))])
        return self


class Launch(_Model):
    """How the gang is started, watched and ended. Times in seconds."""

    launcher: Annotated[
        Literal["torchrun"], f.one_of("torchrun", later=("accelerate", "mpirun", "deepspeed", "srun"))
    ] = "torchrun"
    backend: Annotated[Backend, f.one_of("auto", "nccl", "gloo")] = "auto"
    master: f.AutoText = None
    """An IP address, or the name of the first host; None: found out while joining."""
    ports: f.Ports = (29500, 29599)
    """First and last."""
    join_timeout: f.SomeSeconds = 60.0
    host_timeout: f.SomeSeconds = 60.0
    restarts: Annotated[int, whole(0, 1000)] = 0
    grace: f.Seconds = 10.0
    instrument: f.Flag = True
    run_dir: f.RunDir = f.RUN_DIR
    share: f.NotBuilt = None


class Parallel(_Model):
    """How the model is spread over the ranks."""

    strategy: Annotated[Strategy, f.one_of("auto", "ddp", "fsdp", later=("hsdp",))] = "auto"
    dp_replicate: f.NotBuilt = None
    dp_shard: f.NotBuilt = None
    tp: f.NotBuilt = None
    cp: f.NotBuilt = None
    pp: f.NotBuilt = None


class Metrics(_Model):
    """How metrics are read from a log that disttui does not know."""

    pattern: f.Pattern | None = None


class Profile(_Model):
    """A whole profile. The order of the fields matters: a check sees what stands above it."""

    disttui: Annotated[int, whole(VERSION, VERSION)]
    name: f.RunName
    description: f.Text = ""
    num_processes: f.Processes = None
    python: f.Python = None
    activate: f.Text = ""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    hosts: tuple[Host, ...]
    job: Job
    launch: Launch = Launch()
    parallel: Parallel = Parallel()
    precision: Annotated[Precision, f.one_of("auto", "fp32", "bf16", later=("fp16",))] = "auto"
    metrics: Metrics = Metrics()

    _written: dict[str, Any] = PrivateAttr(default_factory=dict)
    _references: dict[Path, Place] = PrivateAttr(default_factory=dict)

    def as_written(self) -> dict[str, Any]:
        """The file's data for JSON, `--set` included and references unresolved; reads back as the same profile."""
        return self._written

    def workdir(self, rank: int) -> str:
        """Where the job runs on the host of this node rank."""
        return self.hosts[rank].workdir or self.job.workdir

    def host_env(self, rank: int) -> dict[str, str]:
        """The environment of the host of this node rank, top level < job < host, references unresolved."""
        return {**self.env, **self.job.env, **self.hosts[rank].env}

    def split_env(self, rank: int, environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The same as plain values, and as secret ones whose references were resolved: never to be stored.

        Raises:
            ProfileErrors: `environ` lacks a variable that is referred to.
        """
        plain, secret, problems = {}, {}, []
        for name, value in self.host_env(rank).items():
            wanted = f.REFERENCE.findall(value)
            if not wanted:
                plain[name] = value
                continue
            place = self._place_of(rank, name)
            problems += [
                ProfileProblem.at(place, f"the variable {word} is not set here", f"export {word} first")
                for word in wanted
                if word not in environ
            ]
            secret[name] = f.REFERENCE.sub(lambda match: environ.get(match[1], ""), value)
        if problems:
            raise ProfileErrors(problems)
        return plain, secret

    def _place_of(self, rank: int, name: str) -> Place:
        layers: tuple[Path, ...] = (("hosts", rank, "env", name), ("job", "env", name), ("env", name))
        return next((self._references[at] for at in layers if at in self._references), Place(self.name))

    @field_validator("hosts")
    @classmethod
    def _settle_hosts(cls, hosts: tuple[Host, ...], info: ValidationInfo) -> tuple[Host, ...]:
        if not hosts:
            raise bad("no hosts", "expected at least one, like [node1] or [local]")
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
            flaws.append((f"{show(launch.master)} {what}", expected, ("launch", "master")))
        if flaws:
            raise conflicts(flaws)
        return launch

    @field_validator("parallel")
    @classmethod
    def _check_parallel(cls, parallel: Parallel, info: ValidationInfo) -> Parallel:
        _check_option("strategy", parallel.strategy, ("parallel", "strategy"), info.data.get("job"))
        return parallel

    @field_validator("precision")
    @classmethod
    def _check_precision(cls, precision: Precision, info: ValidationInfo) -> Precision:
        _check_option("precision", precision, ("precision",), info.data.get("job"))
        return precision


def _twice(hosts: list[Host]) -> list[Flaw]:
    flaws: list[Flaw] = []
    endpoints: dict[Address, int] = {}
    names: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        if (first := endpoints.setdefault(host.endpoint, rank)) != rank:
            flaws.append((f"the host {host.label()} is listed twice", f"first as host {first}", ("hosts", rank)))
        elif (first := names.setdefault(host.name, rank)) != rank:
            what = f"two hosts are named {show(host.name)}"
            flaws.append((what, "give one another name:", ("hosts", rank, "name")))
    return flaws


def _check_option(name: str, value: str, path: Path, job: Job | None) -> None:
    if job is None or value == "auto":
        return
    if job.builtin is None:
        what = f"{name} reaches the built-in job only"
        raise conflicts([(what, "remove it and give your own job an argument", path)])
    for index, word in enumerate(job.args):
        if word.partition("=")[0] == f"--{name}":
            what = f"--{name} is given here and as {'.'.join(map(str, path))}"
            raise conflicts([(what, "expected one of the two", ("job", "args", index))])
