"""The sections of a profile as typed, frozen models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from runner.address import Address
from runner.profile import addresses
from runner.profile import fields as f
from runner.profile.numbers import whole
from runner.profile.problems import bad, conflicts
from runner.protocol.names import RUN_DIR

MOST_OUTPUTS = 64

Strategy = Literal["auto", "ddp", "fsdp", "hsdp"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Compress = Literal["none", "bf16", "fp16", "powersgd"]
Backend = Literal["auto", "nccl", "gloo", "mpi"]
Launcher = Literal["torchrun", "accelerate", "accelerate-launch", "mpirun", "mpirun-per-host", "deepspeed"]
ACCELERATES = ("accelerate", "accelerate-launch")
"""Launchers whose jobs read `parallel` and `precision`, as Accelerate's variables."""


class Target(NamedTuple):
    """What every rank runs. For a `command`, `value` is its first word and `args` the rest."""

    kind: Literal["builtin", "script", "module", "command"]
    value: str
    args: tuple[str, ...]


class Model(BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(Model):
    """One machine. `num_processes`, `python` and `activate` are effective: the profile's where not given here."""

    host: f.HostText
    """An ssh alias, a name or an IP address, with user@ and :port if need be; `local` for this machine."""
    name: f.HostName = ""
    """Its label, unique in the profile; not given: `host`."""
    user: f.User | None = None
    """The login name; not given: ssh's own choice."""
    port: f.Port | None = None
    """Of its SSH server; not given: ssh's own choice."""
    num_processes: f.Processes = None
    """Its own, in place of the profile's."""
    gpus: f.Gpus = None
    """Indices of the GPUs to use, [] for none; auto: those that nobody uses."""
    quota: f.Quota | None = None
    """The most of its GPUs that one user's runs and leases may have at a time; not given: all."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """Variables of this host's ranks, over the job's and the profile's."""
    python: f.Python = None
    """Its own, in place of the profile's."""
    activate: f.Word = ""
    """Its own, in place of the profile's."""
    workdir: f.Folder | None = None
    """Its own, in place of the job's."""
    address: f.Ip = None
    """The IP address that the other hosts reach it by; auto: tried out."""
    interface: f.Interface = None
    """The network interface of NCCL and gloo; auto: the one that routes to the master."""

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


class Job(Model):
    """What runs: exactly one of `builtin`, `script`, `module` and `command`."""

    builtin: Annotated[Literal["bytegpt"], f.one_of("bytegpt")] | None = None
    """The job that comes with disttui; `disttui bytegpt` lists its arguments."""
    script: f.Script | None = None
    """A Python file, a zip or a folder with __main__.py, from `workdir` on."""
    module: f.Module | None = None
    """A module, as `python -m` takes it."""
    command: tuple[f.Word, ...] | None = None
    """A program with its arguments, started once per rank; its ranks cannot be asked for stacks."""
    args: tuple[f.Word, ...] = ()
    """Arguments of the job, word by word: no shell reads them."""
    workdir: f.Folder = "~"
    """The folder on the hosts that the job runs in."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """Variables of every rank, over the profile's; `${env:NAME}` is taken from your shell at the start,
    `${file:~/.token}` from a file that is yours alone, `${cmd:pass show x}` from a command that your config allows;
    none is stored."""
    outputs: Annotated[tuple[f.Below, ...], f.few(MOST_OUTPUTS)] = ()
    """Folders and files below `workdir`, such as [out/], that `disttui pull` copies, too."""
    wrap: tuple[f.Word, ...] = ()
    """Words before the interpreter, such as [apptainer, exec, img.sif]; `disttui logs` has their output."""
    setup: Annotated[None, f.not_built("prepare the hosts by hand, once")] = None
    """Not built yet."""
    sync: Annotated[None, f.not_built("copy the code to the hosts by hand, as with rsync")] = None
    """Not built yet."""

    @property
    def target(self) -> Target:
        """What every rank runs, as spec.json has it."""
        if self.command:
            return Target("command", self.command[0], self.command[1:])
        if self.builtin:
            return Target("builtin", self.builtin, self.args)
        if self.script:
            return Target("script", self.script, self.args)
        return Target("module", self.module or "", self.args)

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


class Launch(Model):
    """How the gang is started, watched and ended. Times in seconds."""

    launcher: Annotated[Launcher | Literal["slurm"], f.one_of(*get_args(Launcher), "slurm")] = "torchrun"
    """What starts the ranks of a host; accelerate: torchrun, with the variables that Accelerate reads; mpirun: one MPI
    world over all hosts; slurm: torchrun, in a job as the section `slurm` describes it."""
    backend: Annotated[Backend, f.one_of("auto", "nccl", "gloo", "mpi")] = "auto"
    """auto: nccl where every process has a GPU, else gloo; mpi: with launcher mpirun, and a torch built with MPI."""
    master: f.AutoText = None
    """An IP address, or the name of the first host; auto: the address that all hosts have reached."""
    ports: f.Ports = (29500, 29599)
    """First and last port between the hosts; the first that are free are taken."""
    join_timeout: f.SomeSeconds = 60.0
    """How long all hosts are waited for at the start."""
    host_timeout: f.SomeSeconds = 60.0
    """How long a host may be silent until it counts as lost."""
    rejoin_timeout: f.Seconds = 0.0
    """With restarts left: how long a lost host is waited for; the time counts from when it must have ended its own
    ranks; 0: not at all."""
    restarts: Annotated[int, whole(0, 1000)] = 0
    """Further attempts after a failure. None follows an attempt that ended within a minute and never showed that it
    trains (by a metric, a process group or a log that grows for some seconds). None follows two attempts with the same
    error at the same logged step, if the second has written no file to the job's folder or to that of checkpoints."""
    resume_args: tuple[f.Word, ...] = ()
    """Added to the job's arguments from the second attempt on, such as [--init_from=resume]; by `rerun --resume`
    from the first."""
    grace: f.Seconds = 10.0
    """How long ranks that are asked to end have for it, until they are killed."""
    instrument: f.Flag = True
    """Whether ranks report errors and can be asked for stacks; false: only their output is followed."""
    run_dir: f.RunDir = RUN_DIR
    """The folder on the hosts for logs and checkpoints."""
    share: Annotated[None, f.not_built("people with the same account on the hosts can attach")] = None
    """Not built yet."""
    log_limit: f.LogSize = None
    """Bytes of a rank's log that its host keeps at least, the newest; none: all."""

    @model_validator(mode="after")
    def _check_mpi(self) -> Launch:
        if self.backend == "mpi" and self.launcher != "mpirun":
            what = f"backend mpi needs one MPI world over all hosts, and launcher is {self.launcher}"
            raise conflicts([(what, "expected launcher: mpirun beside it", ("launch", "backend"))])
        return self


class Parallel(Model):
    """How the model is spread over the ranks."""

    strategy: Annotated[Strategy, f.one_of("auto", "ddp", "fsdp", "hsdp")] = "auto"
    """Of the built-in job, and of Accelerate by its launchers; auto: as the sizes say; where they say nothing ddp, or
    hsdp or fsdp where the model is too large for the smallest rank's memory."""
    dp_replicate: f.Size = None
    """Copies of the model, each training on samples of its own; auto: what the other sizes leave."""
    dp_shard: f.Size = None
    """Ranks that share one copy's weights, each training on samples of its own; auto: as the strategy says."""
    tp: f.Size = None
    """Ranks that share every layer (tensor parallel), best inside one host; auto: 1."""
    cp: f.Size = None
    """Ranks that share every sequence (context parallel); auto: 1."""
    pp: f.Size = None
    """Stages of consecutive layers, each on ranks of its own (pipeline parallel); auto: 1."""
    sync_interval: Annotated[int, whole(1, 1_000_000)] = 1
    """Of ddp, for slow links: steps that each rank trains alone until weights are averaged (local SGD); 1: none."""
    compress: Annotated[Compress, f.one_of("none", "bf16", "fp16", "powersgd")] = "none"
    """Of ddp, for slow links: what gradients are sent as; powersgd needs numpy, sends least, changes the loss most."""


class OnEnd(Model):
    """What is done where a run was started from, when it has ended; both get its summary as JSON."""

    command: tuple[f.Word, ...] = ()
    """A program with its arguments; it gets the summary on its standard input."""
    webhook: f.Url | None = None
    """A web address that the summary is posted to."""


class Metrics(Model):
    """How metrics are read from a log that disttui does not know."""

    pattern: f.Pattern | None = None
    """A regular expression of Python's kind; its named groups are metrics, such as loss=(?P<loss>[0-9.]+)."""
