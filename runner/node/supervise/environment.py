"""Python environments of `job.environment`: created once per content on a host, and shared by runs.

An environment is a folder of its own; a file with its name is created atomically, once it is complete, and points to
it. So a build that is killed, or runs at the same time on another host with the same disk, affects nothing in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Sequence, cast

from ...protocol.names import ENVIRONMENT, WHEELS
from .. import folders, journal, procs
from ..child import ask
from ..disk import fullness
from ..problem import Problem
from .steps import CommandError, Steps, alone

if TYPE_CHECKING:
    from ...protocol.requests import EnvironmentAnswer, EnvironmentRequest, Offline

_MOST, _UNUSED, _OLD = 8, 7 * 86400.0, 30 * 86400.0
"""Environments kept besides those used within the last week; none that was not used for a month."""
_QUESTION = r"""
import sys
path = [p for p in sys.path if p]
import json, os, platform, sysconfig
from importlib.util import find_spec
own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
def ours(p):
    p = os.path.realpath(p)
    return not any(p == o or os.path.dirname(p) == o for o in own) or p.endswith("-packages")
packages = {}
try:
    from importlib.metadata import distributions
    for one in distributions():
        name = one.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-"), one.version)
except ImportError:
    pass
print("\ndisttui-python " + json.dumps({
    "version": sys.version, "executable": sys.executable, "real": os.path.realpath(sys.executable),
    "platform": [sys.platform, platform.machine(), *platform.libc_ver()], "packages": packages,
    "folders": [p for p in path if os.path.isdir(p) and ours(p)],
    "venv": bool(find_spec("venv") and find_spec("ensurepip")), "tag": "%d.%d" % sys.version_info[:2],
}))
"""
_CONDA = ("micromamba", "mamba", "conda")
_CONDA_PLACES = (
    "~/.local/bin/micromamba", "~/miniforge3/bin/conda", "~/miniconda3/bin/conda", "~/anaconda3/bin/conda",
    "/opt/conda/bin/conda",
)  # fmt: skip


class _Base(NamedTuple):
    """The interpreter that an environment is created with."""

    version: str
    executable: str
    real: str
    platform: List[str]
    packages: Dict[str, str]
    folders: List[str]
    """The folders in which it finds packages."""
    venv: bool
    tag: str


def find(request: EnvironmentRequest, cache: str) -> EnvironmentAnswer:
    """Return the environment if it has been built, and record its use. Raises Problem, OSError."""
    return _found(_folder(cache), _name(request, _describe(request["python"])))


def build(request: EnvironmentRequest, cache: str, tell: Callable[[str], None]) -> EnvironmentAnswer:
    """Build the environment unless it exists.

    Raises:
        Problem: The environment cannot be built.
        EndedError: The viewer is gone.
        OSError: The folder cannot be written.
    """
    top, base = _folder(cache), _describe(request["python"])
    name = _name(request, base)
    run = f"environment-{name}"
    with alone(top, name, run, 0, tell):
        found = _found(top, name)
        if found["python"]:
            return found
        place = os.path.join(top, f"{name}.{os.urandom(8).hex()}")
        try:
            os.mkdir(place, 0o700)
            offline = _make(request, base, place, run, tell)
            if offline:
                shutil.rmtree(place, ignore_errors=True)
                return {"python": "", "packages": {}, "offline": offline}
            python = os.path.join(place, "env/bin/python")
            packages = dict(sorted(_describe(python).packages.items())[:2000])
            made: EnvironmentAnswer = {"python": python, "packages": packages}
            if not _publish(os.path.join(top, f"{name}.json"), made):
                shutil.rmtree(place, ignore_errors=True)
                made = _found(top, name)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        _prune(top, os.path.expanduser(WHEELS))
        return made


def _publish(marker: str, made: EnvironmentAnswer) -> bool:
    """Make an environment available; False if another host with this disk was faster. Raises OSError."""
    if not _found(os.path.dirname(marker), os.path.basename(marker)[: -len(".json")])["python"]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(marker)  # of an environment that no longer exists
    passing = f"{marker}.{os.urandom(8).hex()}"
    journal.write_json(passing, made)
    try:
        os.link(passing, marker)
    except FileExistsError:
        return False
    except OSError:
        os.rename(passing, marker)  # a file server without hard links
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(passing)
    return True


def _folder(cache: str) -> str:
    top = os.path.join(cache, "environments")
    os.makedirs(top, 0o700, exist_ok=True)
    foreign = folders.foreign(top)
    if foreign:
        raise Problem(f"cannot store environments there: {foreign}", f"remove {top}, or make it yours, with mode 0700")
    return top


def _describe(python: str) -> _Base:
    """Query an interpreter about itself. Raises Problem."""
    path = shutil.which(os.path.expanduser(python)) or python
    try:
        answer = ask([path, "-c", _QUESTION], 60.0)
    except OSError as error:
        raise Problem(f"{python} cannot be run: {error.strerror}", "set `python` to an interpreter") from None
    line = next((one for one in answer.out.splitlines() if one.startswith("disttui-python ")), None)
    if line is None:
        said = answer.err.strip().splitlines()
        raise Problem(f"{python} is not Python 3.8 or later: {said[-1] if said else 'no answer'}", "set `python`")
    return _Base(**json.loads(line.partition(" ")[2]))


def _name(request: EnvironmentRequest, base: _Base) -> str:
    inherited = [base.folders, base.packages] if request["inherit"] else None
    made_of = [
        1, sorted(request["files"].items()), list(request["files"])[:1], base.version, base.real, base.platform,
        inherited, os.path.basename(request["wheels"]),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def _found(top: str, name: str) -> EnvironmentAnswer:
    marker = os.path.join(top, f"{name}.json")
    known = journal.read_object(marker)
    if not os.access(str(known.get("python")), os.X_OK):
        return {"python": "", "packages": {}}
    with contextlib.suppress(OSError):
        os.utime(marker)
    return cast("EnvironmentAnswer", known)


def _make(
    request: EnvironmentRequest, base: _Base, place: str, run: str, tell: Callable[[str], None]
) -> Offline | None:
    """Create the environment, or return which wheels it needs."""
    own = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONUNBUFFERED": "1"}
    environment = {**os.environ, **own, **request["env"], "UV_PROJECT_ENVIRONMENT": os.path.join(place, "env")}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME"):
        environment.pop(name, None)
    files = os.path.join(place, "files")
    for name, text in request["files"].items():
        path = os.path.join(files, name)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    steps = Steps(os.path.join(place, "build.log"), run, 0, environment, files, tell)
    try:
        for words in _commands(request, base, place):
            steps.run(words, " ".join(words).replace(f"{place}/", ""))
            if words[1:3] == ["-m", "venv"] and request["inherit"]:
                _inherit(base, place)
    except CommandError as error:
        full = fullness(place)
        main = next(iter(request["files"]))
        what = f"{main} cannot be installed (exit code {error.code})\n{error.said}"
        packed = request["wheels"] or request["sent"] or main.endswith((".lock", ".yml", ".yaml"))
        if full or packed or not any(one in error.said for one in _OFFLINE):
            raise Problem(full or what, "free space there" if full else "correct it, and start again") from None
        torch = base.packages.get("torch", "") if request["inherit"] else ""
        libc = "-".join(base.platform[2:])
        return {"tag": base.tag, "machine": base.platform[1], "libc": libc, "torch": torch, "why": what}
    finally:
        steps.close()
    return None


_OFFLINE = ("No matching distribution", "name resolution", "Failed to establish", "Network is unreachable", "dns error")


def _commands(request: EnvironmentRequest, base: _Base, place: str) -> Sequence[List[str]]:
    """The commands that create an environment. Raises Problem if the host lacks their programs."""
    main, target = next(iter(request["files"])), os.path.join(place, "env")
    python = os.path.join(target, "bin/python")
    wheels = os.path.expanduser(request["wheels"] or request["sent"])
    if wheels:
        os.utime(wheels)
    source = ["--no-index", "--find-links", wheels] if wheels else []
    uv = _program(("uv",), ("~/.local/bin/uv", "~/.cargo/bin/uv"))
    if main == "uv.lock":
        if not uv:
            cure = "install uv there (no root needed), or use an exported requirements.txt"
            raise Problem("uv.lock needs uv, which is not on this host", cure)
        return [[uv, "sync", "--frozen", "--no-install-project", "--python", base.executable, *source]]
    if main.endswith((".yml", ".yaml")):
        conda = _program(_CONDA, _CONDA_PLACES)
        if not conda:
            cure = "install micromamba or conda there, or use a requirements.txt"
            raise Problem(f"{main} needs conda, mamba or micromamba, which this host lacks", cure)
        env = [] if os.path.basename(conda) == "micromamba" else ["env"]
        return [[conda, *env, "create", "--yes", "--prefix", target, "--file", main]]
    if uv and not request["inherit"]:  # uv does not see inherited packages
        return [
            [uv, "venv", "--python", base.executable, target],
            [uv, "pip", "install", "--python", python, "-r", main, *source],
        ]
    if not base.venv:
        cure = f"have root install it (apt install python{base.tag}-venv)"
        cure += ", or set another `python`" if request["inherit"] else ", or install uv"
        raise Problem(f"{base.executable} has no venv with pip (Debian's package lacks it)", cure)
    inherited = ["-c", os.path.join(place, "inherited.txt")] if request["inherit"] else []
    return [
        [base.executable, "-m", "venv", target],
        [python, "-m", "pip", "install", "-r", main, *inherited, *source],
    ]


def _program(names: Sequence[str], places: Sequence[str]) -> str:
    found = (shutil.which(name) for name in names)
    there = (path for path in map(os.path.expanduser, places) if os.access(path, os.X_OK))
    return next(filter(None, found), None) or next(there, "")


def _inherit(base: _Base, place: str) -> None:
    """Let the environment see the packages of its interpreter, and keep that interpreter's torch."""
    lib = os.path.join(place, "env/lib", f"python{base.tag}", "site-packages")
    if "setuptools" in base.packages:  # venv's own may be too old for the inherited packages
        for name in os.listdir(lib):
            if name.startswith(("setuptools", "pkg_resources", "_distutils_hack")):
                shutil.rmtree(os.path.join(lib, name))
            elif name == "distutils-precedence.pth":
                os.unlink(os.path.join(lib, name))
    with open(os.path.join(lib, "inherited.pth"), "x", encoding="utf-8") as file:
        file.write("\n".join(base.folders) + "\n")
    torch = base.packages.get("torch")
    with open(os.path.join(place, "inherited.txt"), "x", encoding="utf-8") as file:
        file.write(f"torch=={torch}\n" if torch else "")


def _prune(top: str, wheels: str) -> None:
    """Remove what no run uses and no start has requested, and the remains of killed builds."""
    markers = [entry for entry in os.scandir(top) if entry.name.endswith(".json")]
    now, kept, used = time.time(), set(), _in_use()
    for number, marker in enumerate(sorted(markers, key=lambda one: one.stat().st_mtime, reverse=True)):
        python = str(journal.read_object(marker.path).get("python"))
        folder = os.path.basename(python[: -len("/env/bin/python")])
        last = marker.stat().st_mtime
        with contextlib.suppress(FileNotFoundError):  # the supervisors on all hosts with this disk touch it
            last = max(last, os.stat(os.path.join(top, folder)).st_mtime)
        idle = now - last
        if idle < _UNUSED or folder in used or (number < _MOST and idle < _OLD):
            kept.add(folder)
        else:
            os.unlink(marker.path)
    more = list(os.scandir(wheels)) if os.path.isdir(wheels) else []
    for entry in [*os.scandir(top), *more]:
        # Seconds after which the remains of a killed build are removed: a host with the same disk may still build
        if entry.is_dir(follow_symlinks=False) and entry.name not in kept and now - entry.stat().st_mtime > 86400.0:
            shutil.rmtree(entry.path, ignore_errors=True)


def _in_use() -> set[str]:
    """Names of the environment folders that this user's living runs on this host use, including queued runs."""
    found = set()
    for pid in procs.table():
        words = procs.arguments(pid)
        if words[-2:-1] == ["warden"]:
            python = str(journal.read_object(os.path.join(words[-1], "spec.json")).get("python"))
            if ENVIRONMENT.search(python):
                found.add(python.split(os.sep)[-4])
    return found
