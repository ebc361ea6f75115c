"""A host's part of a run as its supervisor sees it, and the launcher's command that follows from it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.containers import container_name, start_words
from ..protocol.names import ENVIRONMENT
from .rank.mpi_world import EARLY
from .rank.parent import OVERLAY, PRELOAD, WATCHED

if TYPE_CHECKING:
    from ..protocol.files import Launch, LauncherPart, Secrets, Spec

_BEFORE_ACTIVATE = "exec 187<&0 </dev/null; "
"""What `activate` reads must not be the line that starts the launcher. Scripts rarely use so large a descriptor."""
_AFTER_ACTIVATE = """
case $? in 0) ;; *) echo "disttui: activate ended with status $?" >&2; exit 1 ;; esac
exec "$@" <&187 187<&-
"""
"""If `activate` fails, the launcher must not start: in another environment the job may compute something else."""


class HostPart(NamedTuple):
    """One host's part of one run: its spec and its files."""

    spec: Spec
    folder: str
    node_zip: str
    train_zip: str | None
    secrets: Secrets
    umask: int
    """The login's umask, which the job inherits."""

    @property
    def run(self) -> str:
        return str(self.spec["run"])

    @property
    def node(self) -> int:
        """This host's node rank."""
        return int(self.spec["node_rank"])

    @property
    def launch(self) -> Launch:
        """The profile's `launch` section."""
        return self.spec["launch"]

    @property
    def launcher(self) -> LauncherPart:
        """The part of the node program that starts the ranks."""
        return self.spec.get("launcher", "torchrun")

    @property
    def world_size(self) -> int:
        """How many ranks the run has on all hosts."""
        return sum(self.spec["nproc"])

    @property
    def ranks(self) -> range:
        """The global ranks of this host."""
        first = sum(self.spec["nproc"][: self.node])
        return range(first, first + self.spec["nproc"][self.node])

    @property
    def workdir(self) -> str:
        """The absolute folder that the job runs in."""
        return os.path.abspath(os.path.expanduser(self.spec["workdir"] or "~"))

    @property
    def resume_from(self) -> str:
        """The folder with the checkpoints of the run that this one continues; "" if it continues none."""
        return os.path.expanduser(self.spec.get("resume_from") or "")

    def resumes(self, attempt: int) -> bool:
        """Whether an attempt continues from a checkpoint, if one exists."""
        return attempt > 1 or bool(self.resume_from)

    @property
    def run_dir(self) -> str:
        """The folder of all runs."""
        return os.path.dirname(os.path.dirname(self.folder))

    @property
    def checkpoints(self) -> str:
        """The folder for this run's checkpoints, shared by its attempts."""
        return os.path.join(self.run_dir, self.run, "checkpoints")

    def use_gpus(self, gpus: list[int]) -> None:
        """Use these GPUs of the host instead of those that the run was queued with."""
        spec, name = self.spec, "CUDA_VISIBLE_DEVICES"
        if spec["env"].get(name) == ",".join(map(str, spec["gpus"] or ())):  # otherwise the profile sets its own
            spec["env"][name] = ",".join(map(str, gpus))
        spec["gpus"] = gpus

    def path(self, *names: str) -> str:
        """A file of the run directory."""
        return os.path.join(self.folder, *names)

    def attempt_folder(self, attempt: int) -> str:
        return self.path(f"attempt-{attempt}")

    def command(self, attempt: int) -> list[bytes]:
        """The launcher's argv: activation, wrapping command, launcher, and the shim that ranks start through."""
        spec = self.spec
        target = spec["target"]
        kind, value = target["kind"], target["value"]
        if kind == "builtin":
            kind, value = "script", self.train_zip or ""
        elif kind != "module":
            value = os.path.expanduser(value)  # as the probe does
        python = os.path.expanduser(spec["python"])
        launcher = [python, "-u", self.node_zip, self.launcher, *spec["launcher_args"]]
        around = [*self._container(attempt), *spec["wrap"]]
        # torchrun looks for abbreviations of its options in the script's arguments as well: `--logs` is an error.
        launcher += ["--"] if self.launcher == "torchrun" else []
        words = [*around, *launcher, self.node_zip, "shim", kind, value, *target["args"]]
        if self.resumes(attempt):
            words += self.launch.get("resume_args", [])
        if spec["activate"]:
            shell = ["bash", "-c", _BEFORE_ACTIVATE + spec["activate"] + _AFTER_ACTIVATE, "disttui"]
            words = [*shell, python, self.node_zip, "envexec", *words]
        return [to_bytes(word) for word in words]

    def _container(self, attempt: int) -> list[str]:
        container = self.spec.get("container")
        if not container:
            return []
        zips = os.path.dirname(self.node_zip)
        own = [f"{zips}:{zips}:ro", os.path.dirname(self.folder)]
        own += [folder for folder in (self.workdir, self.resume_from) if os.path.isdir(folder)]
        # An image may have no name for the user: torch._dynamo then fails without USER.
        names = [*self._own_variables(attempt), *self.spec["env"], *self.secrets.get("env", {}), EARLY, WATCHED, "USER"]
        names += ["CUDA_VISIBLE_DEVICES"] if "CUDA_VISIBLE_DEVICES" in os.environ else []  # by Slurm
        return start_words(
            {
                **container,
                "image": _at_home(container["image"]),
                "mounts": [_at_home(mount) for mount in container["mounts"]],
            },
            self.workdir,
            mounts=list(dict.fromkeys(own)),
            variables=list(dict.fromkeys(names)),
            name=container_name(self.run, self.node),
            user=(os.getuid(), os.getgid()),
        )

    def _own_variables(self, attempt: int) -> dict[str, str]:
        return {
            "DISTTUI_RUN": self.run,
            "DISTTUI_NODE": str(self.node),
            "DISTTUI_ATTEMPT": str(attempt),
            **({"DISTTUI_RESUME": "1"} if self.resumes(attempt) else {}),
            **({"DISTTUI_RESUME_FROM": self.resume_from} if self.resume_from else {}),
            "DISTTUI_TAG": f"{self.run}/{self.node}/{attempt}",
            "DISTTUI_DIR": self.attempt_folder(attempt),
            "DISTTUI_CHECKPOINTS": self.checkpoints,
            "DISTTUI_INSTRUMENT": "1" if self.launch["instrument"] else "0",
            **({WATCHED: str(os.getpid())} if self.spec.get("container") else {}),
            **environment_of(os.path.expanduser(self.spec["python"])),
        }

    def environment(self, attempt: int) -> dict[bytes, bytes]:
        """The launcher's environment: the login's, then this run's, then the profile's; later ones take precedence."""
        spec = self.spec
        own = self._own_variables(attempt)
        profile = {**spec["env"], **self.secrets.get("env", {})}
        if preload := self.launch.get("preload"):
            own[PRELOAD] = " ".join(preload)
        if spec["activate"]:
            own[OVERLAY] = json.dumps(profile)
        added = {to_bytes(name): to_bytes(value) for name, value in {**own, **profile}.items()}
        unsaid = (b"DISTTUI_RESUME", b"DISTTUI_RESUME_FROM")
        login = {name: value for name, value in os.environb.items() if name not in unsaid}
        return {**login, **added}


def _at_home(path: str) -> str:
    return os.path.expanduser("~") + path[1:] if path.startswith("~/") else path


def environment_of(python: str) -> dict[str, str]:
    """Variables that let programs of `python`'s environment be found; empty for another interpreter."""
    if not ENVIRONMENT.search(python):
        return {}
    programs = os.path.dirname(python)
    return {"VIRTUAL_ENV": os.path.dirname(programs), "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}


def plan_hash(spec: Spec) -> str:
    """A hash of what all hosts of a run must agree on."""
    common = {
        "run": spec["run"],
        "hosts": spec["hosts"],
        "nproc": spec["nproc"],
        "launcher": spec.get("launcher", "torchrun"),
        "launch": spec["launch"],
        "target": spec["target"],
    }
    return hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()


def to_bytes(text: str) -> bytes:
    """Encode as UTF-8 in every locale; bytes that were undecodable are restored."""
    return text.encode("utf-8", "surrogateescape")
