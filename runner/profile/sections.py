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
from disttui.runner.protocol.limits import PORTS
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
    """An ssh alias, name or IP address, optionally with user@ and :port; `local`: this machine."""
    name: f.HostName = ""
    """Unique label; default: `host`."""
    user: f.User | None = None
    """Login name; default: ssh's own."""
    port: f.Port | None = None
    """SSH port; default: ssh's own."""
    transport: f.Transport | None = None
    """Its own, in place of the profile's."""
    num_processes: f.Processes = None
    """Its own, in place of the profile's."""
    gpus: f.Gpus = None
    """Indices of GPUs to use, [] for none; auto: free ones."""
    quota: f.Quota | None = None
    """Most GPUs, and most CPU runs, of one user at a time; default: all."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """Variables of its ranks, overriding the job's and profile's."""
    python: f.Python = None
    """Its own, in place of the profile's."""
    activate: f.Word = ""
    """Its own, in place of the profile's."""
    workdir: f.Folder | None = None
    """Its own, in place of the job's."""
    address: f.Ip = None
    """IP address for the other hosts; auto: tried out."""
    interface: f.Interface = None
    """Network interface of NCCL and gloo; auto: the route to the master."""

    @property
    def endpoint(self) -> Address:
        """The address to connect to."""
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
            return data  # the field's own check reports the error
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


class _FromWord(Model):
    """A section that may be written as a single word, its source."""

    @model_validator(mode="before")
    @classmethod
    def _take_word(cls, data: Any) -> Any:
        return {"from": data} if isinstance(data, str) else data


class Sync(_FromWord):
    """Local code that every run gets a copy of."""

    source: Annotated[f.LocalFolder, Field(alias="from")] = "."
    """Folder on this machine, or a single file, not a link."""
    to: f.Folder | None = None
    """Parent folder of the copies on the hosts; default: the run's folder."""
    exclude: Annotated[tuple[f.Prose, ...], f.few(MOST_PATTERNS)] = ()
    """What to leave out, as in .gitignore without `!`, such as [data/, "*.bin"]; .disttuiignore files, also
    in subfolders, can add more, and restore defaults by `!`."""
    include: Annotated[tuple[f.Prose, ...], f.few(MOST_PATTERNS)] = ()
    """What to send although excluded, ignored by git, large, apparently secret, or left out by default."""
    max: f.FileSize = 100 * 10**6
    """Larger files are left out."""

    @model_validator(mode="after")
    def _check_patterns(self) -> Sync:
        for name in ("exclude", "include"):
            for index, pattern in enumerate(getattr(self, name)):
                if pattern.startswith("!") or not pattern.strip("/"):
                    path = ("job", "sync", name, index)
                    raise conflicts([(quoted(pattern), "expected a pattern like data/ or *.bin", path)])
        return self

    def folder(self, run_dir: str, run: str) -> str:
        """The path of the copy of run `run` on the hosts."""
        return f"{self.to.rstrip('/')}/{run}" if self.to else f"{run_dir.rstrip('/')}/{run}/{CODE}"


class Environment(_FromWord):
    """Python packages of the job, in a separate environment on every host."""

    source: Annotated[f.LocalFolder, Field(alias="from")] = "."
    """requirements.txt, uv.lock beside its pyproject.toml, conda's environment.yml, or a folder with one of them."""
    inherit: f.Flag = False
    """Also use packages of the host's `python`, such as torch; only with a requirements file."""
    wheels: f.LocalFolder | None = None
    """Local folder of wheels instead of a package index; default: hosts that reach no index get wheels downloaded
    here."""


class Job(Model):
    """What runs: exactly one of `builtin`, `script`, `module` and `command`."""

    builtin: Annotated[Literal["bytegpt"], f.one_of("bytegpt")] | None = None
    """The built-in job; `disttui profile bytegpt` lists its arguments."""
    script: f.Script | None = None
    """A Python file, zip or folder with __main__.py, relative to `workdir`."""
    module: f.Module | None = None
    """As for `python -m`."""
    command: tuple[f.Word, ...] | None = None
    """A program with arguments, started once per rank, without stacks."""
    args: tuple[f.Word, ...] = ()
    """Arguments, word by word, without a shell."""
    workdir: f.Folder = "~"
    """The job's folder on the hosts."""
    env: Mapping[f.EnvName, f.EnvValue] = {}
    """Variables of every rank, over the profile's; [secrets](security.md#secrets): `${env:NAME}`, `${file:~/.token}`,
    `${cmd:pass show x}`."""
    outputs: Annotated[tuple[f.Below, ...], f.few(MOST_OUTPUTS)] = ()
    """Paths below `workdir`, such as [out/], that `disttui runs pull` also copies."""
    wrap: tuple[f.Word, ...] = ()
    """Words before the interpreter, such as [apptainer, exec, img.sif]; output in `disttui logs`."""
    sync: Sync | None = None
    """Local folder or file to send, such as `.`, or a mapping; each run gets its own copy, as its `workdir`. All that
    git does not ignore is sent; without git, or if it ignores every file, all but usual leftovers."""
    environment: Environment | None = None
    """Packages: a local file, such as `requirements.txt`, or a mapping; each host installs them once."""
    setup: Annotated[tuple[f.Prose, ...], f.few(MOST_COMMANDS)] = ()
    """Commands for bash, such as [make], run in `workdir` before the ranks, once per host until they, `env`, the
    synced code or the environment change, or for every run if they make what names its own place, as virtual
    environments do; output in `disttui logs`."""

    @property
    def target(self) -> Target:
        """What every rank runs, as in spec.json."""
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
            raise bad(f"{' and '.join(given)} are set" if given else "nothing to run is named", expected)
        if self.command is not None and (not self.command or not self.command[0]):
            raise conflicts([("the command is empty", "expected a list of words", ("job", "command"))])
        if self.sync and "workdir" in self.model_fields_set:
            raise conflicts(
                [("with sync, the job runs in the copy of its folder", "remove workdir", ("job", "workdir"))]
            )
        if self.environment and self.wrap:
            what = "with wrap, the job uses the interpreter of its container"
            raise conflicts([(what, "remove environment", ("job", "environment"))])
        if self.command and self.args:
            raise conflicts([("the arguments of a command are in its list", "move them", ("job", "args"))])
        return self


class Launch(Model):
    """How the gang is started, watched and ended. Times in seconds."""

    launcher: Annotated[Launcher | Literal["slurm"], f.one_of(*get_args(Launcher), "slurm")] = "torchrun"
    """What starts the ranks ([launchers](launchers.md))."""
    backend: Annotated[Backend, f.one_of("auto", "nccl", "gloo", "mpi")] = "auto"
    """auto: nccl if every process has a GPU, else gloo; mpi: needs launcher mpirun and a torch built with MPI."""
    master: f.AutoText = None
    """An IP address, or the first host's name; auto: an address that all hosts reach."""
    ports: f.Ports = PORTS
    """First and last port between hosts; the first free ones are used."""
    join_timeout: f.SomeSeconds = 60.0
    """Time for all hosts to join."""
    host_timeout: f.SomeSeconds = 60.0
    """Silence after which a host is lost."""
    rejoin_timeout: f.Seconds = 0.0
    """Time for a lost host to return, if restarts remain."""
    restarts: Annotated[int, whole(0, 1000)] = 0
    """Further attempts after a failure. None follows an attempt that failed within a minute without a metric, a process
    group or some seconds of growing log, unless a host was lost, which needs rejoin_timeout; nor two with the same
    error at the same logged step, if the second wrote no file to the job's or checkpoint folder."""
    resume_args: tuple[f.Word, ...] = ()
    """Added to the job's arguments from the second attempt on, such as [--init_from=resume]; with `rerun --resume` from
    the first."""
    grace: f.Seconds = 10.0
    """Time for ranks to end before they are killed."""
    instrument: f.Flag = True
    """Whether ranks report errors and stacks."""
    preload: tuple[f.Module, ...] = ()
    """Modules to import once per host before forking its ranks, such as [torch, torch._dynamo]
    ([conditions](launchers.md#one-import-for-the-ranks-of-a-host))."""
    allow_differences: f.Flag = False
    """Whether the job's code may differ between hosts."""
    run_dir: f.RunDir = RUN_DIR
    """Folder on the hosts for logs and checkpoints."""
    log_limit: f.LogSize = None
    """How much of a rank's log its host keeps at least, the newest part; none: all."""

    @model_validator(mode="after")
    def _check_mpi(self) -> Launch:
        if self.backend == "mpi" and self.launcher != "mpirun":
            what = f"backend mpi needs one MPI world over all hosts, but launcher is {self.launcher}"
            raise conflicts([(what, "expected launcher: mpirun", ("launch", "backend"))])
        return self


class Parallel(Model):
    """How the model is spread over the ranks."""

    strategy: Annotated[Strategy, f.one_of("auto", "ddp", "fsdp", "hsdp")] = "auto"
    """For the built-in job and Accelerate's launchers ([layouts](parallel.md))."""
    dp_replicate: f.Size = None
    """Copies of the model; auto: what the other sizes leave."""
    dp_shard: f.Size = None
    """Ranks that share a copy's weights; auto: by the strategy."""
    tp: f.Size = None
    """Ranks that share every layer (tensor parallel); auto: 1."""
    cp: f.Size = None
    """Ranks that share every sequence (context parallel); auto: 1."""
    pp: f.Size = None
    """Stages of consecutive layers (pipeline parallel); auto: 1."""
    sync_interval: Annotated[int, whole(1, 1_000_000)] = 1
    """With ddp: steps between averages of weights (local SGD); 1: none."""
    compress: Annotated[Compress, f.one_of("none", "bf16", "fp16", "powersgd")] = "none"
    """With ddp: form of sent gradients; powersgd needs numpy, sends least, changes the loss most."""


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
        raise bad(quoted(value), "expected /folder, ~/folder, or /folder:/inside, with :ro at the end if read-only")
    return value


class Container(Model):
    """What the launcher and all ranks of a host run in."""

    image: Annotated[f.Word, AfterValidator(_image)]
    """Name; for apptainer also a file, which `job.sync` can bring."""
    runtime: Annotated[Runtime, f.one_of(*get_args(Runtime))]
    """Needed on every host."""
    mounts: tuple[Annotated[f.Word, AfterValidator(_mount)], ...] = ()
    """Folders of the hosts, such as [~/data, /scratch:/data:ro]."""
    options: tuple[f.Word, ...] = ()
    """Options of the runtime, such as [--memory=64g]."""

    def spec(self, gpus: bool) -> ContainerSpec:
        """The container as in spec.json; `gpus` gives it access to NVIDIA GPUs."""
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
    """Files that every host gets before its ranks start."""

    to: Annotated[f.Folder, AfterValidator(_data_place)]
    """Path on every host, such as ~/data/tokens.bin; replaces only what this key put there."""
    source: Annotated[f.LocalFolder, AfterValidator(_data_source), Field(alias="from")]
    """A local file or folder; host:/path or host:~/path of a host of the profile; https://…, s3://… (needs aws or s5cmd
    on a host) or hf://datasets/ORG/NAME (needs hf), a folder if it ends in /."""
    size: f.FileSize | None = None
    """Space needed, if the address does not tell."""
    sha256: Annotated[f.Text, AfterValidator(_sha256)] | None = None
    """Required hash of the file; needed for http://…"""

    @property
    def host_path(self) -> tuple[str, str]:
        """Host of the profile and path there, for a source on a host; ("", "") for any other source."""
        found = re.fullmatch(r"([^/:~.][^/:]*):([/~].*)", self.source, re.DOTALL)
        return (found[1], found[2]) if found and not self.is_address else ("", "")

    @property
    def is_address(self) -> bool:
        """Whether the source is a URL, which hosts fetch themselves."""
        return "://" in self.source

    @model_validator(mode="after")
    def _check_plain(self) -> Data:
        if self.source.startswith("http://") and not self.sha256:
            raise bad("http:// can be altered on the way", "use https://, or set its sha256")
        return self


class OnEnd(Model):
    """What the machine that started a run does when it has ended; both get its summary as JSON."""

    command: tuple[f.Word, ...] = ()
    """Program and arguments, with the summary on standard input."""
    webhook: f.Url | None = None
    """Web address to post the summary to."""


class Notify(Model):
    """Where the hosts send notifications of a run, even without a viewer."""

    webhook: f.Address | None = None
    """Web address that gets each notification as JSON."""
    slack: f.Address | None = None
    """Incoming webhook, as a reference: `${env:SLACK_WEBHOOK}`."""
    discord: f.Address | None = None
    """Webhook, as a reference."""
    ntfy: f.Address | None = None
    """Topic, such as https://ntfy.sh/my-topic."""
    email: f.MailAddress | None = None
    """Server, login, recipient: `smtps://me:${env:MAIL_PASSWORD}@mail.example.org/me@example.org`."""
    events: Annotated[tuple[NotifyEvent, ...], f.few(len(get_args(NotifyEvent)))] = ()
    """Any of started (from the queue), ended, failed, stalled, recovered and alarm; default: all."""


class WatchNonFinite(Model):
    """A loss or a gradient norm that is not finite, two or five records in a row."""

    do: Annotated[Action, f.one_of(*get_args(Action))] = "notify"
    """notify, stacks (store every rank's stack), snapshot (SIGUSR1 to ranks that handle it; the built-in job writes a
    checkpoint), stop, restart, rollback (restart from a checkpoint before the trouble); the last two need
    launch.restarts."""


class WatchEvent(Model):
    """A condition that is always reported."""

    do: Annotated[Action, f.one_of(*get_args(Action))] = "notify"
    """A further action, as of the other rules."""


class WatchStall(WatchEvent):
    """No step and no output of any rank."""

    seconds: f.SomeSeconds | None = None
    """How long it lasts; default: the longest of 30 s, five usual pauses and twice the longest pause."""


class WatchLog(WatchNonFinite):
    """A line in a rank's log, or its absence."""

    pattern: f.Expression
    """Python regular expression, searched for in lines of up to 16,384 characters."""
    absent: f.SomeSeconds | None = None
    """Instead: seconds without a match, of rank 0 and of ranks that had one."""


class WatchSpike(WatchNonFinite):
    """A metric that is high for three records in a row; not in the first 64 of an attempt."""

    metric: f.MetricName = "loss"
    """Which metric."""
    times: f.Positive = 8.0
    """How far above the median of the last 128 records, in scaled median absolute deviations."""


class WatchSlow(WatchNonFinite):
    """Steps that take longer than they did before."""

    percent: f.Percent = 30.0
    """How far below its own best rate."""
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
    """What hosts watch for while a run trains; each is an action, a mapping, or off."""

    nonfinite: WatchNonFinite | None = WatchNonFinite()
    """A loss or gradient norm is NaN or infinite; notify is the default."""
    spike: WatchSpike | None = None
    """A metric is far above its recent median."""
    slow: WatchSlow | None = None
    """A rank is slower than it was."""
    goal: WatchGoal | None = None
    """A metric has reached a value, such as {metric: val_loss, below: 1.5, do: stop}."""
    plateau: WatchPlateau | None = None
    """A metric no longer improves."""
    log: WatchLog | None = None
    """A line matches, such as {pattern: "CUDA error", do: restart}, or none does."""
    stall: WatchStall | None = None
    """No rank shows progress."""
    disk: WatchEvent | None = None
    """The run folder's disk is nearly full."""
    memory: WatchEvent | None = None
    """Memory of a GPU or host grows steadily and is full within the hour; a GPU's is nearly full; a host swaps."""
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
        """The rules as in spec.json."""
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
    """Python regular expression whose named groups are metrics, such as loss=(?P<loss>[0-9.]+)."""


def parse_host(text: str) -> Host:
    """Parse an ssh alias, `user@host:port` or `local` to a host named by its address. Raises InputError."""
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
"""Pattern of option values that neither Slurm nor a shell splits or alters."""
_TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+(:\d+)?)?")
_KEYS = {
    "nodes": "slurm.nodes", "partition": "slurm.partition", "time": "slurm.time", "account": "slurm.account",
    "qos": "slurm.qos", "gpus-per-node": "slurm.gpus_per_node", "cpus-per-task": "slurm.cpus_per_node",
    "ntasks": "num_processes", "ntasks-per-node": "num_processes", "job-name": "name", "chdir": "job.workdir",
}  # fmt: skip
"""sbatch options that have a profile key of their own."""
_OURS = (
    "array", "clusters", "error", "export", "export-file", "get-user-env", "gid", "help", "hold", "input",
    "kill-on-bad-exit", "no-kill", "no-requeue", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket",
    "open-mode", "output", "parsable", "quiet", "requeue", "signal", "test-only", "uid", "usage", "version", "wait",
    "wrap",
)  # fmt: skip
"""sbatch options that would take control of the job away from disttui."""
_GPU_OPTION = re.compile(r"--gpus|--gres=(\S*,)?gpu")
_KNOWN = (
    "acctg-freq", "bb", "batch", "begin", "cluster-constraint", "comment", "constraint", "container", "contiguous",
    "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "dependency",
    "distribution", "exclude", "exclusive", "extra-node-info", "gpu-bind", "gpu-freq", "gpus", "gpus-per-socket",
    "gpus-per-task", "gres", "gres-flags", "hint", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "nodefile", "nodelist", "overcommit", "oversubscribe",
    "power", "prefer", "priority", "profile", "propagate", "reboot", "reservation", "sockets-per-node", "spread-job",
    "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "use-min-nodes", "wait-all-nodes", "wckey",
)  # fmt: skip


_word = f.matches(_WORD, "expected one word")
_time = f.matches(_TIME, 'expected minutes, or like "1:30:00" or "2-12:00"')


def _option(value: str) -> str:
    name, equals, rest = value.partition("=")
    if not re.fullmatch(r"--[a-z][a-z-]*", name) or (equals and not _WORD.fullmatch(rest)):
        raise bad(quoted(value), "expected --name=value, or --name for an option without a value")
    word = name[2:]
    if key := _KEYS.get(word):
        raise bad(f"{name} has a key of its own", f"choose it by {key}")
    if word in _OURS:
        raise bad(f"{name} is set by disttui", "remove it")
    if word not in _KNOWN:
        meant = near(word, (*_KNOWN, *_KEYS))
        cure = f"did you mean --{meant}?" if meant else "remove it"
        raise bad(f"{name} is not a known option of sbatch", cure)
    return value


Word = Annotated[f.Text, AfterValidator(_word)]


class Slurm(Model):
    """What the run requests from Slurm; `hosts` is then only the login node."""

    nodes: Annotated[int, whole(1, MOST_NODES)] = 1
    """Nodes, with `num_processes` ranks each."""
    partition: Word | None = None
    """--partition; default: the cluster's."""
    time: Annotated[f.Text, AfterValidator(_time)] | None = None
    """--time, the job's limit; default: the partition's."""
    account: Word | None = None
    """--account; default: yours."""
    qos: Word | None = None
    """--qos; default: yours."""
    gpus_per_node: Annotated[int, whole(0, 1024)] = 0
    """GPUs on each node (--gres=gpu:N); other requests go into `options`."""
    cpus_per_node: Annotated[int | None, whole(1, 4096, auto=True)] = None
    """Processors on each node (--cpus-per-task of its one task); auto: one per rank."""
    options: Annotated[tuple[Annotated[f.Text, AfterValidator(_option)], ...], f.few(_MOST_OPTIONS)] = ()
    """More options of sbatch, such as [--constraint=a100, --mem=64G]."""

    @property
    def asks_gpus(self) -> bool:
        """Whether the job gets GPUs."""
        return self.gpus_per_node > 0 or any(map(_GPU_OPTION.match, self.options))

    def sbatch(self) -> list[str]:
        """The sbatch options set by this section, without `nodes` and `cpus_per_node`."""
        given = {name: getattr(self, name) for name in ("partition", "time", "account", "qos")}
        gpus = [f"--gres=gpu:{self.gpus_per_node}"] if self.gpus_per_node else []
        return [*(f"--{name}={value}" for name, value in given.items() if value is not None), *gpus, *self.options]
