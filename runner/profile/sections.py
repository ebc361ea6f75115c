"""The sections of a profile as typed, frozen models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from disttui.runner.address import Address
from disttui.runner.errors import InputError, near
from disttui.runner.profile import fields as f
from disttui.runner.profile.fields import whole
from disttui.runner.profile.problems import bad, conflicts, printable, quoted
from disttui.runner.protocol.containers import ContainerSpec, Runtime
from disttui.runner.protocol.names import CODE, RUN_DIR
from disttui.runner.protocol.watch import Action, WatchRule

MOST_OUTPUTS = 64
MOST_PATTERNS = 1000
MOST_COMMANDS = 64
MOST_DATA = 64

Strategy = Literal["auto", "ddp", "fsdp", "hsdp"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Compress = Literal["none", "bf16", "fp16", "powersgd"]
Backend = Literal["auto", "nccl", "gloo", "mpi"]
Launcher = Literal["torchrun", "accelerate", "accelerate-launch", "mpirun", "mpirun-per-host", "deepspeed"]
NotifyEvent = Literal["started", "ended", "failed", "stalled", "recovered", "alarm"]
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
    """One machine. `num_processes`, `python`, `activate` and `transport` are effective: the profile's where not given
    here."""

    host: f.HostText
    """An ssh alias, a name or an IP address, with user@ and :port if need be; `local` for this machine."""
    name: f.HostName = ""
    """Its label, unique in the profile; not given: `host`."""
    user: f.User | None = None
    """The login name; not given: ssh's own choice."""
    port: f.Port | None = None
    """Of its SSH server; not given: ssh's own choice."""
    transport: f.Transport | None = None
    """Its own, in place of the profile's."""
    num_processes: f.Processes = None
    """Its own, in place of the profile's."""
    gpus: f.Gpus = None
    """Indices of the GPUs to use, [] for none; auto: those that nobody uses."""
    quota: f.Quota | None = None
    """The most of its GPUs that one user may have at a time, and the most runs on its CPUs; not given: all."""
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
        return Address(self.host, self.user, self.port, self.transport)

    @model_validator(mode="before")
    @classmethod
    def _take_apart(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"host": data}
        if not isinstance(data, dict) or not isinstance(data.get("host"), str):
            return data
        try:
            user, host, port = f.split_host(data["host"])
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


class Sync(Model):
    """Code of this machine that every run gets a copy of."""

    source: Annotated[f.LocalFolder, Field(alias="from")] = "."
    """The folder on this machine; a relative one starts at the profile's file."""
    to: f.Folder | None = None
    """The folder on the hosts in which each run gets a folder of its own; not given: the run's folder in `run_dir`."""
    exclude: Annotated[tuple[f.Prose, ...], f.few(MOST_PATTERNS)] = ()
    """Files and folders to leave out, in the form of .gitignore but without `!`, such as [data/, "*.bin"]; a file
    .disttuiignore in the folder has more of them, a line each."""
    include: Annotated[tuple[f.Prose, ...], f.few(MOST_PATTERNS)] = ()
    """What to send although it is large, looks like a secret, or is left out without git, in the same form."""
    max: f.FileSize = 100 * 10**6
    """The size above which a file is left out."""

    @model_validator(mode="before")
    @classmethod
    def _take_word(cls, data: Any) -> Any:
        return {"from": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_patterns(self) -> Sync:
        for name in ("exclude", "include"):
            for index, pattern in enumerate(getattr(self, name)):
                if pattern.startswith("!") or not pattern.strip("/"):
                    path = ("job", "sync", name, index)
                    raise conflicts([(quoted(pattern), "expected a pattern like data/ or *.bin", path)])
        return self

    def folder(self, run_dir: str, run: str) -> str:
        """Where a run's copy is on the hosts."""
        return f"{self.to.rstrip('/')}/{run}" if self.to else f"{run_dir.rstrip('/')}/{run}/{CODE}"


class Environment(Model):
    """Python packages of the job, in an environment of its own on every host."""

    source: Annotated[f.LocalFolder, Field(alias="from")] = "."
    """A file of this machine: requirements.txt, uv.lock beside its pyproject.toml, or conda's environment.yml; or a
    folder with one of them. A relative path starts at the profile's file."""
    inherit: f.Flag = False
    """Whether the packages of the host's own `python`, torch above all, are there as well; only with a requirements
    file."""
    wheels: f.LocalFolder | None = None
    """A folder of this machine with wheels, which are sent to the hosts and used in place of a package index; not
    given: hosts that reach none get what this machine downloads for them."""

    @model_validator(mode="before")
    @classmethod
    def _take_word(cls, data: Any) -> Any:
        return {"from": data} if isinstance(data, str) else data


class Job(Model):
    """What runs: exactly one of `builtin`, `script`, `module` and `command`."""

    builtin: Annotated[Literal["bytegpt"], f.one_of("bytegpt")] | None = None
    """The job that comes with disttui; `disttui profile bytegpt` lists its arguments."""
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
    """Folders and files below `workdir`, such as [out/], that `disttui runs pull` also copies."""
    wrap: tuple[f.Word, ...] = ()
    """Words before the interpreter, such as [apptainer, exec, img.sif]; `disttui logs` has their output."""
    sync: Sync | None = None
    """A folder of this machine that is sent to all hosts, such as `.`, or a mapping; each run gets a copy of its own,
    which is its `workdir`. What git tracks and does not ignore is sent; without git, or where it ignores all files, all
    but the usual leftovers."""
    environment: Environment | None = None
    """The packages of the job: a file of this machine such as `requirements.txt`, or a mapping. Each host makes an
    environment from it with `python`, once, and its runs share that."""
    setup: Annotated[tuple[f.Prose, ...], f.few(MOST_COMMANDS)] = ()
    """Commands for bash, such as [make], run in `workdir` before the ranks start: once on each host, and again when
    they, the code of `sync` or the environment change; `disttui logs` has their output."""

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
        if self.sync and "workdir" in self.model_fields_set:
            raise conflicts([("a job with sync runs in the copy of its folder", "remove workdir", ("job", "workdir"))])
        if self.environment and self.wrap:
            what = "a job with wrap runs with the interpreter of its container"
            raise conflicts([(what, "remove environment", ("job", "environment"))])
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
    trains (by a metric, a process group or a log that grows for some seconds), unless a host was lost. None follows
    two attempts with the same error at the same logged step, if the second has written no file to the job's folder or
    to that of checkpoints."""
    resume_args: tuple[f.Word, ...] = ()
    """Added to the job's arguments from the second attempt on, such as [--init_from=resume]; by `rerun --resume`
    from the first."""
    grace: f.Seconds = 10.0
    """How long ranks that are asked to end have for it, until they are killed."""
    instrument: f.Flag = True
    """Whether ranks report errors and can be asked for stacks; false: only their output is followed."""
    preload: tuple[f.Module, ...] = ()
    """What each host imports once for its ranks, which are then forked, such as [torch, torch._dynamo]; ranks import
    for themselves wherever a forked one might differ (docs/launchers.md)."""
    allow_differences: f.Flag = False
    """Whether hosts may have different versions of the job's code, as `--allow-differences` says."""
    run_dir: f.RunDir = RUN_DIR
    """The folder on the hosts for logs and checkpoints."""
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


def _image(value: str) -> str:
    if not value.strip() or value.startswith("-"):
        raise bad(quoted(value), "expected an image, like docker.io/pytorch/pytorch:latest or ~/images/torch.sif")
    return value


def _mount(value: str) -> str:
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if (
        not source.startswith(("/", "~/"))
        or (":" in value and not target.startswith("/"))
        or mode not in ("", "ro", "rw")
    ):
        raise bad(quoted(value), "expected /folder, ~/folder, or /folder:/inside, with :ro at the end to protect it")
    return value


class Container(Model):
    """What the launcher and all ranks of a host run in."""

    image: Annotated[f.Word, AfterValidator(_image)]
    """Its name, or for apptainer also a file, which `job.sync` can bring."""
    runtime: Annotated[Runtime, f.one_of(*get_args(Runtime))]
    """podman, docker, apptainer or enroot, which every host has."""
    mounts: tuple[Annotated[f.Word, AfterValidator(_mount)], ...] = ()
    """Folders of the hosts, such as [~/data, /scratch:/data:ro]. The run's folder and `workdir` are always there."""
    options: tuple[f.Word, ...] = ()
    """More options of the runtime, such as [--memory=64g]."""

    def spec(self, gpus: bool) -> ContainerSpec:
        """As spec.json has it; `gpus`: with those of NVIDIA."""
        return {
            "runtime": self.runtime,
            "image": self.image,
            "mounts": list(self.mounts),
            "options": list(self.options),
            "gpus": gpus,
        }


def _data_place(value: str) -> str:
    parts = value.rstrip("/").split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
        raise bad(quoted(value), "expected a path with a name at its end, like ~/data/tokens.bin")
    return "/".join(parts)


def _data_source(value: str) -> str:
    scheme, address, rest = value.partition("://")
    if address and (scheme not in ("https", "http", "s3", "hf") or not re.fullmatch(r"([^\s/-][^\s/]*/?)+", rest)):
        raise bad(quoted(value), "expected https://…, s3://… or hf://…, a path, or host:/path")
    return value


_sha256 = f.matches(re.compile("[0-9a-f]{64}"), "expected 64 hexadecimal digits, as sha256sum prints them")


class Data(Model):
    """Files that every host has before its ranks start."""

    to: Annotated[f.Folder, AfterValidator(_data_place)]
    """Their path on every host, such as ~/data/tokens.bin; what stood there before must have come by
    this key too."""
    source: Annotated[f.LocalFolder, AfterValidator(_data_source), Field(alias="from")]
    """A file or folder of this machine; host:/path or host:~/path of a host of the profile; an address https://…,
    s3://… (with aws or s5cmd on a host) or hf://datasets/ORG/NAME (with hf), a folder if it ends in /."""
    size: f.FileSize | None = None
    """The room that it takes, for addresses that do not say: checked before anything is fetched."""
    sha256: Annotated[f.Text, AfterValidator(_sha256)] | None = None
    """Of the file's content, which must have it; needed for http://…"""

    @property
    def host_path(self) -> tuple[str, str]:
        """The host of the profile that has it, and its path there; two empty texts for any other source."""
        found = re.fullmatch(r"([^/:~.][^/:]*):([/~].*)", self.source, re.DOTALL)
        return (found[1], found[2]) if found and not self.is_address else ("", "")

    @property
    def is_address(self) -> bool:
        """Whether hosts fetch it."""
        return "://" in self.source

    @model_validator(mode="after")
    def _check_plain(self) -> Data:
        if self.source.startswith("http://") and not self.sha256:
            raise bad("anybody on the way can alter what http:// brings", "use https://, or give its sha256")
        return self


class OnEnd(Model):
    """What is done where a run was started from, when it has ended; both get its summary as JSON."""

    command: tuple[f.Word, ...] = ()
    """A program with its arguments; it gets the summary on its standard input."""
    webhook: f.Url | None = None
    """A web address that the summary is posted to."""


class Notify(Model):
    """Where the hosts send what happens to a run, with every viewer closed."""

    webhook: f.Address | None = None
    """A web address that gets each notification as JSON."""
    slack: f.Address | None = None
    """The address of an incoming webhook of Slack, as a reference: `${env:SLACK_WEBHOOK}`."""
    discord: f.Address | None = None
    """The address of a webhook of Discord, as a reference."""
    ntfy: f.Address | None = None
    """A topic of ntfy, such as https://ntfy.sh/my-topic."""
    email: f.MailAddress | None = None
    """A mail server, login and receiver: `smtps://me:${env:MAIL_PASSWORD}@mail.example.org/me@example.org`."""
    events: Annotated[tuple[NotifyEvent, ...], f.few(len(get_args(NotifyEvent)))] = ()
    """Which of started (from the queue), ended, failed, stalled, recovered and alarm; not given: all."""


class WatchNonFinite(Model):
    """A loss or a gradient norm that is not finite, two or five records in a row."""

    do: Annotated[Action, f.one_of(*get_args(Action))] = "notify"
    """notify, stacks (store where every rank is), snapshot (SIGUSR1 to the ranks that handle it, on which the built-in
    job writes a checkpoint), stop, restart or rollback."""


class WatchEvent(Model):
    """Something that is reported in any case."""

    do: Annotated[Action, f.one_of(*get_args(Action))] = "notify"
    """What else is done: as of the other rules."""


class WatchStall(WatchEvent):
    """Silence of all ranks: no step, and no output."""

    seconds: f.SomeSeconds | None = None
    """How long it lasts; not given: 30 s, five usual pauses and twice the longest."""


class WatchLog(WatchNonFinite):
    """A line in a rank's log, or its absence."""

    pattern: f.Expression
    """A regular expression of Python's kind, searched for in each line of at most 2,000 characters."""
    absent: f.SomeSeconds | None = None
    """Seconds without a line that matches, of rank 0 and of ranks that had one; not given: a line that matches."""


class WatchSpike(WatchNonFinite):
    """A metric that is high for three records in a row; not in the first 64 of an attempt."""

    metric: f.MetricName = "loss"
    """Which metric."""
    times: f.Positive = 8.0
    """How far above the median of the last 128 records, in scaled median absolute deviations."""


class WatchSlow(WatchNonFinite):
    """Steps that take longer than they did before."""

    percent: f.Percent = 30.0
    """How far the rate is below its own best."""
    seconds: f.SomeSeconds = 300.0
    """For how long."""


class WatchGoal(WatchNonFinite):
    """A metric that has reached a value."""

    metric: f.MetricName = "loss"
    """Which metric."""
    above: f.Number | None = None
    """Reached above this value."""
    below: f.Number | None = None
    """Reached below this value."""

    @model_validator(mode="after")
    def _check_one(self) -> WatchGoal:
        if (self.above is None) == (self.below is None):
            raise bad("a goal is one value", "expected above or below, like {metric: val_loss, below: 1.5}")
        return self


class WatchPlateau(WatchNonFinite):
    """A metric that has not improved by a thousandth for some steps."""

    metric: f.MetricName = "loss"
    """Which metric."""
    steps: f.Positive = 1000.0
    """Steps without a new best."""
    better: Annotated[Literal["lower", "higher"], f.one_of("lower", "higher")] = "lower"
    """Which values are better."""


class Watch(Model):
    """What is looked for while a run trains, with every viewer closed; each an action or a mapping, or off."""

    nonfinite: WatchNonFinite | None = WatchNonFinite()
    """A loss or gradient norm that is NaN or infinite; notify is the default."""
    spike: WatchSpike | None = None
    """A metric far above its recent median."""
    slow: WatchSlow | None = None
    """A rank that has become slower than it was."""
    goal: WatchGoal | None = None
    """A metric that has reached a value, such as {metric: val_loss, below: 1.5, do: stop}."""
    plateau: WatchPlateau | None = None
    """A metric that no longer improves."""
    log: WatchLog | None = None
    """A line that matches an expression, such as {pattern: "CUDA error", do: restart}, or none for some seconds."""
    stall: WatchStall | None = None
    """No rank has shown progress for a while."""
    disk: WatchEvent | None = None
    """The disk of a run's folder is nearly full."""
    memory: WatchEvent | None = None
    """A GPU's or host's memory grows steadily and is full within the hour; a GPU's is nearly full; a host swaps."""
    host: WatchEvent | None = None
    """A GPU is throttled by heat, or used by another program."""

    @model_validator(mode="before")
    @classmethod
    def _take_words(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            key: None if given in ("off", False, "false") else {"do": given} if isinstance(given, str) else given
            for key, given in data.items()
        }

    def rules(self) -> list[WatchRule]:
        """The rules as spec.json has them."""
        found: list[WatchRule] = []
        for name in type(self).model_fields:
            rule: Model | None = getattr(self, name)
            if rule is None:
                continue
            given = rule.model_dump(exclude_none=True)
            if given.pop("better", "lower") == "higher":
                given["above"] = 0.0
            found.append(cast("WatchRule", {"rule": name, **given}))
        return found


class Metrics(Model):
    """How metrics are read from a log that disttui does not know."""

    pattern: f.Pattern | None = None
    """A regular expression of Python's kind; its named groups are metrics, such as loss=(?P<loss>[0-9.]+)."""


def parse_host(text: str) -> Host:
    """The host that an ssh alias, `user@host:port` or `local` means, named by its address. Raises InputError."""
    try:
        host = Host(host=text)
    except ValidationError as error:
        flaw = error.errors()[0]["ctx"]
        cure = str(flaw["expected"]).replace("expected", "give", 1)
        raise InputError(
            printable(f"{quoted(text)} is not a host: {flaw['what']}"), f"{cure[:1].upper()}{cure[1:]}."
        ) from None
    return host.model_copy(update={"name": host.label()})


MOST_NODES = 1024
_MOST_OPTIONS = 64
_WORD = re.compile(r"[A-Za-z0-9_.,:@%+=*/&|\[\]()!-]+")
"""Of an option's value: neither Slurm nor a shell divides it or takes part of it away."""
_TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+(:\d+)?)?")
_KEYS = {
    "nodes": "slurm.nodes", "partition": "slurm.partition", "time": "slurm.time", "account": "slurm.account",
    "qos": "slurm.qos", "gpus-per-node": "slurm.gpus_per_node", "cpus-per-task": "slurm.cpus_per_node",
    "ntasks": "num_processes", "ntasks-per-node": "num_processes", "job-name": "name", "chdir": "job.workdir",
}  # fmt: skip
"""Options that have a key of their own."""
_OURS = (
    "array", "clusters", "error", "export", "export-file", "get-user-env", "gid", "help", "hold", "input",
    "kill-on-bad-exit", "no-kill", "no-requeue", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket",
    "open-mode", "output", "parsable", "quiet", "requeue", "signal", "test-only", "uid", "usage", "version", "wait",
    "wrap",
)  # fmt: skip
"""Options by which the job would not be disttui's any more."""
_KNOWN = (
    "acctg-freq", "bb", "batch", "begin", "cluster-constraint", "comment", "constraint", "container", "contiguous",
    "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "dependency",
    "distribution", "exclude", "exclusive", "extra-node-info", "gpu-bind", "gpu-freq", "gpus", "gpus-per-socket",
    "gpus-per-task", "gres", "gres-flags", "hint", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "nodefile", "nodelist", "overcommit", "oversubscribe",
    "power", "prefer", "priority", "profile", "propagate", "reboot", "reservation", "sockets-per-node", "spread-job",
    "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "use-min-nodes", "wait-all-nodes", "wckey",
)  # fmt: skip


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise bad(quoted(value), "expected one word, as Slurm's option takes it")
    return value


def _time(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise bad(quoted(value), 'expected minutes, or like "1:30:00" or "2-12:00"')
    return value


def _option(value: str) -> str:
    name, equals, rest = value.partition("=")
    if not re.fullmatch(r"--[a-z][a-z-]*", name) or (equals and not _WORD.fullmatch(rest)):
        raise bad(quoted(value), "expected --name=value, or --name for an option without a value")
    word = name[2:]
    if key := _KEYS.get(word):
        raise bad(f"{name} has its own key", f"choose it by {key}")
    if word in _OURS:
        raise bad(f"{name} is disttui's to choose", "remove it")
    if word not in _KNOWN:
        meant = near(word, (*_KNOWN, *_KEYS))
        cure = f"did you mean --{meant}?" if meant else "remove it"
        raise bad(f"{name} is not a known option of sbatch", cure)
    return value


Word = Annotated[f.Text, AfterValidator(_word)]


class Slurm(Model):
    """What the run asks of Slurm: `hosts` is then the login node alone."""

    nodes: Annotated[int, whole(1, MOST_NODES)] = 1
    """Nodes of the job; each gets `num_processes` ranks."""
    partition: Word | None = None
    """--partition; not given: the cluster's default."""
    time: Annotated[f.Text, AfterValidator(_time)] | None = None
    """--time, the job's limit; not given: the partition's."""
    account: Word | None = None
    """--account; not given: your default."""
    qos: Word | None = None
    """--qos; not given: your default."""
    gpus_per_node: Annotated[int, whole(0, 1024)] = 0
    """GPUs on each node (--gres=gpu:N); another kind of request goes into `options`."""
    cpus_per_node: Annotated[int | None, whole(1, 4096, auto=True)] = None
    """Processors on each node (--cpus-per-task of its one task); auto: one for each rank."""
    options: Annotated[tuple[Annotated[f.Text, AfterValidator(_option)], ...], f.few(_MOST_OPTIONS)] = ()
    """Further options of sbatch, such as [--constraint=a100, --mem=64G]."""

    def sbatch(self) -> list[str]:
        """The options of sbatch that the profile gives."""
        given = {name: getattr(self, name) for name in ("partition", "time", "account", "qos")}
        gpus = [f"--gres=gpu:{self.gpus_per_node}"] if self.gpus_per_node else []
        return [*(f"--{name}={value}" for name, value in given.items() if value is not None), *gpus, *self.options]
