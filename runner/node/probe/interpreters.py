"""The Pythons of a host, and which of them have torch, read from files: importing torch would take seconds.

Sources: PEP 405 (pyvenv.cfg), the documentation of `site` (folders, .pth files), PEP 376 (dist-info folders).
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import shutil
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...protocol import open_mpi
from ..child import Answer, ask, together
from ..disk import read_text

if TYPE_CHECKING:
    from ...protocol.facts import Interpreter, Needs, Software, Source

_FULL_VERSION = re.compile(r"\d+\.\d+\.\d+")


class PythonLayout(NamedTuple):
    """An interpreter as its files show it: prefix, full version, and the folders that packages come from."""

    prefix: str
    version: str
    folders: List[str]


def layout(path: str) -> Optional[PythonLayout]:
    """Return the layout of the interpreter at `path`, None if the files do not show all of it (a pyenv shim)."""
    environment = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    text = read_text(os.path.join(environment, "pyvenv.cfg"))
    pairs = (line.partition("=") for line in text.splitlines())
    config = {name.strip().lower(): value.strip() for name, _, value in pairs} if text else None
    if config is None:
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(path)))
        short = _short_version(prefix, os.path.realpath(path))
        version = _full_version(prefix, short)
        return PythonLayout(prefix, version, _site_folders(prefix, short, user=True)) if version else None
    # virtualenv and uv write version_info, venv writes version.
    match = _FULL_VERSION.match(config.get("version", config.get("version_info", "")))
    if match is None:
        return None
    short = ".".join(match.group().split(".")[:2])
    shares = config.get("include-system-site-packages") == "true"
    folders = _site_folders(environment, short, user=shares)
    if shares:
        base = os.path.realpath(os.path.join(config.get("home", ""), "python" + short))
        folders += _site_folders(os.path.dirname(os.path.dirname(base)), short, user=False)
    return PythonLayout(environment, match.group(), folders)


class Torch(NamedTuple):
    """A torch as its files describe it: its folder, its versions of torch, CUDA and NCCL, and whether it has MPI."""

    folder: str
    version: str
    cuda: Optional[str]
    nccl: Optional[str]
    mpi: Optional[bool]
    """None if its libraries do not show it."""


def torch_in(folders: Sequence[str]) -> Optional[Torch]:
    """Return the first torch in `folders`, or None."""
    for folder in folders:
        text = read_text(os.path.join(folder, "torch", "version.py"))
        version = _assigned(text, "__version__")
        if version:
            libraries = needed(os.path.join(folder, "torch", "lib", "libtorch_cpu.so"))
            mpi = None if libraries is None else any(name.startswith("libmpi") for name in libraries)
            for built_for, release in (("rocm", _assigned(text, "hip")), ("xpu", _assigned(text, "xpu"))):
                if release and built_for not in version:  # built from source, as in AMD's images
                    version += ("." if "+" in version else "+") + built_for
            return Torch(os.path.realpath(folder), version, _assigned(text, "cuda"), _nccl(folders), mpi)
    return None


def _short_version(prefix: str, path: str) -> str:
    """Return `3.11` from the program's name, or else from the only standard library under its prefix."""
    named = re.fullmatch(r"python(3\.\d+)t?", os.path.basename(path))
    found = glob.glob(os.path.join(glob.escape(prefix), "lib*", "python3.*", "os.py"))
    libraries = {os.path.basename(os.path.dirname(name))[len("python") :] for name in found}
    if named and named.group(1) in libraries:
        return named.group(1)
    return libraries.pop() if not named and len(libraries) == 1 else ""


def _full_version(prefix: str, short: str) -> str:
    """Return `3.11.7` from the C header, which conda, pyenv and uv install, or if it is the running Python."""
    if not short:
        return ""
    header = read_text(os.path.join(prefix, "include", "python" + short, "patchlevel.h"))
    match = re.search(r'^#define PY_VERSION\s+"([^"]+)"', header, re.MULTILINE)
    if match:
        return match.group(1)
    if os.path.realpath(sys.base_prefix) == prefix and short == "%d.%d" % sys.version_info[:2]:
        return "%d.%d.%d" % sys.version_info[:3]
    return ""


def _site_folders(prefix: str, short: str, user: bool) -> List[str]:
    name = "python" + short
    folders = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if user:
        folders.append(os.path.expanduser(f"~/.local/lib/{name}/site-packages"))
    # Debian's own Python (prefix /usr) uses dist-packages and puts pip's folder first.
    folders += [
        os.path.join(prefix, *parts)
        for parts in (
            ("local", "lib", name, "dist-packages"),
            ("lib", name, "site-packages"),
            ("lib64", name, "site-packages"),
            ("lib", "python3", "dist-packages"),
        )
    ]
    folders = [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
    return folders + [extra for folder in folders for extra in _pth(folder)]


def _pth(folder: str) -> List[str]:
    """Return the folders that .pth files add; lines that are code are not executed."""
    found = []
    for name in sorted(glob.glob(os.path.join(glob.escape(folder), "*.pth"))):
        for line in read_text(name).splitlines():
            path = os.path.join(folder, line.strip())
            if line.strip() and not line.startswith(("#", "import ", "import\t")) and os.path.isdir(path):
                found.append(path)
    return found


def _assigned(text: str, name: str) -> Optional[str]:
    match = re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]{{1,80}})['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def _nccl(folders: Sequence[str]) -> Optional[str]:
    """Return the version of the nvidia-nccl wheel, or of conda's nccl package."""
    for folder in folders:
        wheels = glob.glob(os.path.join(glob.escape(folder), "nvidia_nccl_cu*-*.dist-info"))
        conda = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(folder))), "conda-meta")
        for name in wheels + glob.glob(os.path.join(glob.escape(conda), "nccl-[0-9]*.json")):
            return os.path.basename(name).split("-")[1].replace(".dist", "")
    return None


_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5
_MOST_BYTES = 1 << 20
"""Largest table in bytes; torch's have some ten thousand."""


def needed(path: str) -> Optional[List[str]]:
    """Return their names, None if the file is not a 64-bit little-endian ELF file, or cannot be read."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return _needed(file)
    except (OSError, struct.error, StopIteration, ValueError, OverflowError):
        return None


def _needed(file: BinaryIO) -> Optional[List[str]]:
    """Sources: the System V ABI, chapters 4 and 5, and its supplement for 64 bits."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    table = _read_at(file, start, size * count)
    # Type, offset in the file, address, size in the file.
    segments = [
        (struct.unpack_from("<I", table, at)[0], *struct.unpack_from("<QQ8xQ", table, at + 8))
        for at in range(0, len(table), size)
    ]
    _, at, _, length = next(one for one in segments if one[0] == _DYNAMIC)
    entries: List[Tuple[int, int]] = list(struct.iter_unpack("<qQ", _read_at(file, at, length - length % 16)))
    address = next(value for tag, value in entries if tag == _STRINGS)
    offset = next(
        at + address - begin for kind, at, begin, length in segments if kind == _LOAD and 0 <= address - begin < length
    )
    names = [_read_at(file, offset + value, 256).partition(b"\0")[0] for tag, value in entries if tag == _NEEDED]
    return [name.decode("utf-8", "replace") for name in names]


def _read_at(file: BinaryIO, at: int, size: int) -> bytes:
    if size > _MOST_BYTES:
        raise ValueError("too large for a table")
    file.seek(at)
    return file.read(size)


_MARK = "disttui-interpreter "
# Runs in the interpreter in question, and must not fail under Python 2. Arguments: a module or "", a package or "",
# a program whose version to ask for or "", then programs.
# The module is not imported, and no file of the working folder may shadow the imports here.
_QUESTION = (
    r"""
import sys
path = sys.path[:]
sys.path[:] = [p for p in path if p]
import json
module, package, asked = (sys.argv + ["", "", ""])[1:4]
programs = {}
def missing(name):
    places = whole = None
    for part in name.split("."):
        whole = whole + "." + part if whole else part
        spec = find_spec(part) if whole == part else PathFinder.find_spec(whole, list(places or ()))
        if spec is None:
            return whole
        places = spec.submodule_search_locations
    if places is not None and PathFinder.find_spec(whole + ".__main__", list(places)) is None:
        return whole + ".__main__"
    return ""
answer = lacks = says = None
try:
    from importlib.machinery import PathFinder
    from importlib.util import find_spec
    from os import getcwd
    from os.path import expanduser
    from shutil import which
    from subprocess import STDOUT, check_output
    programs = {p: bool(which(expanduser(p))) for p in sys.argv[4:]}
    sys.path[:] = [getcwd()] + sys.path
    lacks = find_spec(package) is None if package else None
    answer = missing(module) if module else None
    says = asked and check_output([which(asked), "--version"], stderr=STDOUT, timeout=5).decode("utf-8", "replace")
except Exception:
    pass
version = ".".join(map(str, sys.version_info[:3]))
print(%r + json.dumps([sys.executable, sys.prefix, version, [p for p in path if p], answer, programs, lacks, says]))
"""
    % _MARK
)
# `$1`: the interpreter; if empty, the first in PATH after the line. `$2`: the program above; the rest: its arguments.
_AFTER_ACTIVATE = """
disttui_status=$?
disttui_python=$1
[ -n "$disttui_python" ] || disttui_python=$(command -v python3 || command -v python) || exit 127
"$disttui_python" -c "$2" "${@:3}"
exit $disttui_status
"""
_ENVIRONMENTS = (".venv", "venv", "env")
_CONDA = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda")
_MOST = 64
_VERSION_LIMIT = 5.0
"""Seconds for a program to print its version; on a timeout nothing else of the probe is lost."""

_FAILED = "activate ended with status "


class Requirements(NamedTuple):
    """What the job needs in its environment; empty fields are not searched for."""

    module: str = ""
    programs: Tuple[str, ...] = ()
    package: str = ""
    """The launcher's package."""
    version_of: str = ""
    """A program of the launcher, which prints its version when called with `--version`."""


class _Found(NamedTuple):
    path: str
    source: Source
    layout: PythonLayout
    needs: Optional[Needs] = None


def software(
    python: str, activate: str, workdir: str, problems: List[str], wanted: Requirements, limit: float = 15.0
) -> Software:
    """Return the probe's `interpreters`, starting with the profile's, `activate_problem` and `needs`.

    Conda and venv environments are listed only if they have torch.

    Args:
        python: The profile's interpreter; "" or `auto` names none.
        activate: The profile's shell line; `python` is then resolved in its environment.
        workdir: A folder to search for virtual environments, besides the home.
        problems: Receives sentences about problems.
        wanted: What to search for after `activate`, in the interpreter that the job will use.
        limit: Seconds for the shell line, and for each interpreter that must be run.
    """
    known = len(problems)
    python = "" if python == "auto" else os.path.expanduser(python)
    named = os.path.join(workdir, python) if os.sep in python else python
    tasks: Dict[str, Callable[[], Optional[_Found]]] = {}
    if activate.strip():
        tasks["activate"] = partial(_activated, activate, named, workdir, limit, problems, wanted)
    elif python:
        named = shutil.which(named) or named
        tasks["profile"] = partial(_look, named, "profile", limit)
    for path, source in itertools.islice(_candidates(workdir), _MOST):
        tasks[path] = partial(_look, path, source, limit)
    results = together(tasks, limit + 1)
    for name, result in results.items():
        if isinstance(result, Exception):
            problems.append(f"{name if name != 'profile' else named} cannot be inspected: {result}")
    found = list(_described([one for one in results.values() if isinstance(one, _Found)]))
    activated = results.get("activate")
    needs = activated.needs if isinstance(activated, _Found) else None
    if not activate.strip() and os.path.isdir(workdir):
        needs = _lacking(wanted, found, workdir, limit)
    failed = [problem for problem in problems[known:] if problem.startswith(_FAILED)]
    return {
        "interpreters": found,
        "activate_problem": failed[0] if failed else "",
        "needs": needs or {"module": None, "programs": [], "package": None, "version": None},
    }


def _lacking(wanted: Requirements, found: List[Interpreter], workdir: str, limit: float) -> Needs:
    """Search the login's own environment, without `activate`."""
    missing = [
        name
        for name in wanted.programs
        if shutil.which(os.path.join(workdir, os.path.expanduser(name)) if "/" in name else name) is None
    ]
    # The interpreter that the viewer would choose.
    chosen = next((one for one in found if one["source"] == "profile"), None) or next(
        (one for one in found if one["torch"] and one["source"] != "elsewhere"), None
    )
    version = _version_of(wanted.version_of, limit, workdir) if wanted.version_of else None
    needs: Needs = {"module": None, "programs": missing, "package": None, "version": version}
    if chosen and (wanted.module or wanted.package):
        words = [chosen["path"], "-c", _QUESTION, wanted.module, wanted.package]
        asked = _answered(ask(words, limit, workdir), "path", wanted.package)
        if asked and asked.needs:
            needs["module"], needs["package"] = asked.needs["module"], asked.needs["package"]
    return needs


def _version_of(program: str, limit: float, workdir: str) -> Optional[str]:
    try:
        answer = ask([shutil.which(program) or program, "--version"], min(limit, _VERSION_LIMIT), workdir)
    except OSError:
        return None
    return _version_line(answer.out + answer.err) if answer.code == 0 else None


def _candidates(workdir: str) -> Iterator[Tuple[str, Source]]:
    """Yield (path, source) of every program that may be a Python, each once."""
    seen: Set[str] = set()
    for path, source in _places(workdir):
        if path not in seen and os.access(path, os.X_OK):
            seen.add(path)
            yield path, source


def _places(workdir: str) -> Iterator[Tuple[str, Source]]:
    yield shutil.which("python3") or shutil.which("python") or "", "path"
    roots = [os.environ.get("CONDA_PREFIX", ""), *(os.path.expanduser(path) for path in _CONDA)]
    for root in filter(None, roots):
        for prefix in [root, *sorted(glob.glob(os.path.join(glob.escape(root), "envs", "*")))]:
            yield os.path.join(prefix, "bin", "python"), "conda"
    for folder in dict.fromkeys((workdir, os.path.expanduser("~"))):
        for name in _ENVIRONMENTS:
            yield os.path.join(folder, name, "bin", "python"), "venv"
    # Folders of environments; those in them, and those of other projects in the home, are listed but never chosen
    for pattern in ("~/.virtualenvs", "~/venvs", "~/envs", "~/.pyenv/versions", "/opt"):
        for prefix in sorted(glob.glob(os.path.join(os.path.expanduser(pattern), "*"))):
            yield os.path.join(prefix, "bin", "python"), "elsewhere"
    try:
        projects = sorted(os.listdir(os.path.expanduser("~")))[:256]
    except OSError:
        return
    for project, name in itertools.product(projects, _ENVIRONMENTS):
        yield os.path.join(os.path.expanduser("~"), project, name, "bin", "python"), "elsewhere"


def _look(path: str, source: Source, limit: float) -> Optional[_Found]:
    """Return what is at `path`, None if it is not Python 3. Raises OSError if that cannot be determined.

    The profile's interpreter is run: the files around a misspelt name describe one that does not exist.
    """
    known = None if source == "profile" else layout(path)
    if known is not None:
        return _Found(path, source, known)
    if source == "elsewhere":
        return None
    answer = ask([path, "-c", _QUESTION], limit)
    if answer.code is None:
        raise TimeoutError(f"no answer in {limit:g} s and was killed")
    found = _answered(answer, source)
    if found is None and source == "profile":
        raise OSError(f"not Python 3 ({_last_line(answer)})")
    return found


def _activated(
    activate: str, python: str, workdir: str, limit: float, problems: List[str], wanted: Requirements
) -> Optional[_Found]:
    """Run the profile's shell line in the job's folder, then query the interpreter of its environment."""
    there = os.path.isdir(workdir)
    folder = workdir if there else "/"
    wanted_words = (wanted.module, wanted.package, wanted.version_of, *wanted.programs) if there else ()
    answer = ask(["bash", "-c", activate + _AFTER_ACTIVATE, "bash", python, _QUESTION, *wanted_words], limit, folder)
    if answer.code is None:
        problems.append(f"activate did not end in {limit:g} s and was killed: {_last_line(answer)}")
    elif answer.code:
        problems.append(f"{_FAILED}{answer.code}: {_last_line(answer)}")
    found = _answered(answer, "profile" if python else "activate", wanted.package)
    if found is None and answer.code == 0:
        problems.append(f"no Python 3 after activate: {_last_line(answer)}")
    return found


def _answered(answer: Answer, source: Source, package: str = "") -> Optional[_Found]:
    lines = [line for line in answer.out.splitlines() if line.startswith(_MARK)]
    if not lines:
        return None
    try:
        path, prefix, version, folders, module, programs, lacks, says = json.loads(lines[-1][len(_MARK) :])
    except ValueError:
        return None
    if not version.startswith("3."):
        return None
    needs: Needs = {
        "module": module,
        "programs": [name for name, there in programs.items() if not there],
        "package": package if lacks else "" if lacks is False else None,
        "version": _version_line(says or ""),
    }
    return _Found(path, source, PythonLayout(prefix, version, folders), needs)


def _version_line(said: str) -> Optional[str]:
    """The line with a version, None if nothing was printed."""
    return open_mpi.version_of(said)[:200] or None


def _last_line(answer: Answer) -> str:
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def _described(found: List[_Found]) -> Iterator[Interpreter]:
    seen: Set[Tuple[str, str]] = set()
    for item in found:
        torch = torch_in(item.layout.folders)
        key = (os.path.realpath(item.layout.prefix), torch.folder if torch else "")
        if key in seen or (not torch and item.source in ("conda", "venv", "elsewhere")):
            continue
        seen.add(key)
        yield {
            "path": item.path,
            "version": item.layout.version,
            "torch": torch.version if torch else None,
            "cuda": torch.cuda if torch else None,
            "nccl": torch.nccl if torch else None,
            "mpi": torch.mpi if torch else None,
            "source": item.source,
        }
