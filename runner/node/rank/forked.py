"""Forks ranks from a launcher that has imported torch, so that one import serves all ranks of a host.

A forked rank must not differ from one that torchrun starts. If a difference is known before the start, the launcher
does not fork and its ranks start as usual; what torchrun sets for a rank is checked in the forked process, which can
still execute the command that torchrun has requested.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import zipfile
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from .run_main import modules_in

_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
_OF_A_RANK = re.compile(
    r"(\w+_)?RANK|(\w+_)?WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|(TORCH_)?NCCL_\w+|GLOO_\w+|DISTTUI_\w+"
)
"""Variables that only a rank has. torch and the libraries below it read them after their import."""
_READ_AT_IMPORT = re.compile(
    rb"\b(?:(?:OMP|GOMP|KMP|MKL|MKLDNN|DNNL|ONEDNN|OPENBLAS|BLIS|NUMEXPR|NPY|NUMPY|ATEN|AOT[A-Z]*|INDUCTOR|KINETO|TQDM"
    rb"|TORCH(?!ELASTIC)[A-Z]*|PYTORCH|TRITON|HF|TRANSFORMERS)_[A-Z]\w*|setproctitle\b)"
)
"""If the job's code names such a variable, it may set it before it imports torch.

setproctitle writes to where the kernel found the launcher's command line.
"""
_READ_AT_START = re.compile(rb"RANK|WORLD_SIZE|MASTER_|TORCHELASTIC|argv|getpid")
_IMPORT = re.compile(rb"\b(?:from[ \t]+(\.*)([\w.]*)|import[ \t]+([\w., \t]+))")
_OTHER_DEVICES = {"habana_frameworks", "intel_extension_for_pytorch", "torch_mlu", "torch_musa", "torch_npu"}
_MOST_FILES = 500

_REFUSED = "disttui: each rank imports torch itself: %s\n"

_OF_TORCHRUN = (
    (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL), (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
)  # fmt: skip
"""Signals that torchrun handles itself, so none of them is ignored in the processes it starts."""

_waiting: List[Tuple[int, int]] = []
"""Forked ranks that wait for torchrun's command: pid, and the descriptor to write it to."""
_shown: List[mmap.mmap] = []


class _OwnImport(Exception):
    """Why the ranks of this host import torch themselves."""


def prepare(modules: Sequence[str], argv: Sequence[str]) -> Sequence[str]:
    """Import torch and fork this host's ranks; returns twice, as `os.fork` does.

    Args:
        modules: Modules to import besides torch.
        argv: The launcher's options, the node program, `shim`, and its arguments.

    Returns:
        In the launcher, nothing; in a rank, the arguments of its shim, once torchrun has requested it.
    """
    inherited = [number for number in map(int, os.listdir("/proc/self/fd")) if number > 2 and _is_inheritable(number)]
    count = int(argv[argv.index("--nproc-per-node") + 1])
    job = argv[argv.index("shim", argv.index(sys.argv[0])) + 1 :]
    # torchrun sets it for several ranks, and libraries read it while they are loaded.
    ours = count > 1 and "OMP_NUM_THREADS" not in os.environ
    if ours:
        os.environ["OMP_NUM_THREADS"] = "1"
    env = dict(os.environ)
    printed = os.fstat(2).st_size
    try:
        _check_before(job)
        # As in a rank, where nothing may find the node program and keep it open (importlib.metadata).
        own = sys.path.pop(0)
        try:
            for name in ["torch", *modules]:
                importlib.import_module(name)
        finally:
            sys.path.insert(0, own)
        # torch._dynamo sets some: ranks get these as well, the launcher passes on what it was given.
        imported = {name: value for name, value in os.environ.items() if env.get(name) != value}
        _set_environment(env)
        _check_after(job, os.fstat(2).st_size > printed)
        # Ranks share the memory of objects they do not collect, and end in half the time.
        gc.freeze()
        for _ in range(count):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.setsid()  # before torchrun may signal its group
                    for number in (writer, *inherited, *(other for _, other in _waiting)):
                        os.close(number)
                    return _await_command(reader, env, imported)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)  # otherwise it would be another launcher
            os.close(reader)
            _waiting.append((pid, writer))
        _hook()
    except Exception as why:
        # If torch cannot be imported, the launcher is about to fail for that reason.
        sys.stderr.write(_REFUSED % why)
    # Ranks keep it.
    if ours:
        del os.environ["OMP_NUM_THREADS"]
    return ()


def _hook() -> None:
    """Make torchrun use the forked ranks where it would start processes."""
    from torch.distributed.elastic.multiprocessing.api import SubprocessHandler

    plain: Any = SubprocessHandler._popen

    def popen(self: Any, args: Sequence[str], env: Dict[str, str]) -> Any:
        while _waiting and self._stdout is None and self._stderr is None:
            pid, writer = _waiting.pop(0)
            try:
                with open(writer, "wb") as pipe:
                    pipe.write(json.dumps({"args": args, "env": env}).encode())
            except OSError:
                continue  # it has been killed
            return _Forked(pid, args)
        return plain(self, args, env)

    SubprocessHandler._popen = popen


class _Forked(subprocess.Popen):  # type: ignore[type-arg]  # not generic before Python 3.9
    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self._forked = pid
        super().__init__(args)

    def _execute_child(self, *_: Any) -> None:
        self.pid, self._child_created = self._forked, True


def _await_command(reader: int, env: Dict[str, str], imported: Dict[str, str]) -> Sequence[str]:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    if not data:
        os._exit(0)  # the launcher has ended
    for number, handler in _OF_TORCHRUN:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    order = json.loads(data)
    args: List[str] = order["args"]
    theirs: Dict[str, str] = order["env"]
    changed = {name for name in {*env, *theirs} if env.get(name) != theirs.get(name)}
    late = sorted(name for name in changed if not _OF_A_RANK.fullmatch(name))
    as_planned = args[0] == sys.executable and args[1:4] == ["-u", sys.argv[0], "shim"]
    if late or not as_planned or not _show(args, theirs):
        sys.stderr.write(_REFUSED % ("%s came after the import" % (", ".join(late) or args[0])))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(args[0], args, theirs)  # noqa: S606
    _set_environment({**theirs, **imported})
    if hasattr(sys, "orig_argv"):  # novm
        sys.orig_argv = args
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None  # the script may set TMPDIR
    # Random values that a new interpreter chooses, except for the hash seed; `random` reseeds itself in a fork.
    process, numpy = sys.modules.get("multiprocessing.process"), sys.modules.get("numpy.random")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    if numpy is not None:
        numpy.seed()
    sys.modules["torch"].default_generator.seed()
    return args[4:]


def _set_environment(env: Dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


def _show(args: Sequence[str], env: Dict[str, str]) -> bool:
    """Make /proc show a command line and an environment as this process's (see prctl(2), PR_SET_MM_MAP)."""
    words = b"".join(os.fsencode(word) + b"\0" for word in args)
    variables = b"".join(os.fsencode("%s=%s" % pair) + b"\0" for pair in env.items())
    memory = mmap.mmap(-1, len(words) + len(variables), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(words + variables)
    _shown.append(memory)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle, end = begin + len(words), begin + len(words) + len(variables)
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        stat = ["", "", "", *file.read().rpartition(")")[2].split()]
    code, stack, data = map(int, stat[26:28]), int(stat[28]), map(int, stat[45:48])
    layout = struct.pack("11QQII", *code, *data, libc.sbrk(0), stack, begin, middle, middle, end, 0, 0, 0xFFFFFFFF)
    libc.prctl(_PR_SET_NAME, os.fsencode(os.path.basename(args[0])), 0, 0, 0)
    return bool(libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), 0) == 0)


def _check_before(job: Sequence[str]) -> None:
    """Raise _OwnImport for reasons known before the import."""
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if os.environ.get(name):
            raise _OwnImport("%s is set" % name)
    if sys.gettrace() or sys.getprofile():
        raise _OwnImport("the interpreter is traced")
    for module in ("sitecustomize", "usercustomize"):
        path = getattr(sys.modules.get(module), "__file__", None)
        if path and (found := _READ_AT_START.search(_read(path))):
            raise _OwnImport("%s names %s" % (path, found[0].decode()))
    for path, text in _sources(*job[:2]):
        found = _READ_AT_IMPORT.search(text)
        if found:
            raise _OwnImport("%s names %s" % (path, found[0].decode()))


def _check_after(job: Sequence[str], has_printed: bool) -> None:
    """Raise _OwnImport for effects of the import."""
    torch = sys.modules["torch"]
    if has_printed:
        raise _OwnImport("the import prints something")
    if torch.version.hip or getattr(torch.version, "xpu", None):
        raise _OwnImport("this has not been tried with ROCm or XPU")
    if torch.cuda.is_initialized():
        raise _OwnImport("the import initialises CUDA")
    loaded = {name.partition(".")[0] for name in sys.modules}
    if loaded & _OTHER_DEVICES:
        raise _OwnImport("this has not been tried with %s" % min(loaded & _OTHER_DEVICES))
    shadows = loaded & _modules_beside(*job[:2])
    if shadows:
        raise _OwnImport("the job's folder has its own module %s" % min(shadows))
    # OpenBLAS ends its threads before a fork, and restarts them when needed. Others keep running.
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not torch.cuda._is_in_bad_fork() and _show(sys.argv, dict(os.environ)) else 1)
    if os.waitpid(pid, 0)[1]:
        raise _OwnImport("the kernel lets no process change its command line, or CUDA cannot be used in a fork")
    if len(os.listdir("/proc/self/task")) > 1:
        raise _OwnImport("the import starts a thread")


def _modules_beside(kind: str, value: str) -> Set[str]:
    """The modules in the folder or zip that the interpreter puts first in sys.path."""
    if zipfile.is_zipfile(value) and kind == "script":
        with zipfile.ZipFile(value) as archive:
            return {name.partition("/")[0].partition(".")[0] for name in archive.namelist()} - {"__main__"}
    return modules_in(_root(kind, value)) - {"__main__"}


def _root(kind: str, value: str) -> str:
    if kind == "module":
        return os.getcwd()
    return value if os.path.isdir(value) else os.path.dirname(os.path.realpath(value))


def _sources(kind: str, value: str) -> Iterator[Tuple[str, bytes]]:
    """The job's script, and the files that it or they import: next to it, or in a PYTHONPATH below `workdir`."""
    if kind == "script" and zipfile.is_zipfile(value):
        with zipfile.ZipFile(value) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    yield os.path.join(value, name), archive.read(name)
        return
    root, here = _root(kind, value), os.path.join(os.getcwd(), "")
    roots = [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    roots = [one for one in roots if one == root or (one and os.path.join(os.path.abspath(one), "").startswith(here))]
    roots = [one for one in roots if not os.path.isdir(os.path.join(one, "torch"))]  # not everything that is installed
    queue = [value]
    if kind == "module":
        queue = [path for name in (value, value + ".__main__") for path in _files(root, name)]
    elif os.path.isdir(value):
        queue = [os.path.join(value, "__main__.py")]
    seen: Set[str] = set()
    while queue:
        path = os.path.realpath(queue.pop())
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > _MOST_FILES:
            raise _OwnImport("the job has more than %d files" % _MOST_FILES)
        text = _read(path)
        yield path, text
        for dots, name, names in _IMPORT.findall(text):
            folders = [os.path.join(os.path.dirname(path), *[".."] * (len(dots) - 1))] if dots else roots
            several = [word.split()[0] for word in names.split(b",") if word.strip()]
            for one in several if names else [name]:
                queue += [file for folder in folders for file in _files(folder, one.decode("utf-8", "replace"))]


def _files(folder: str, name: str) -> Iterator[str]:
    """The files of a module and of its packages; `from package import module` may mean any file there."""
    for part in name.split("."):
        folder = os.path.join(folder, part)
        if os.path.isfile(folder + ".py"):
            yield folder + ".py"
        if not os.path.isdir(folder):
            return
        yield from (os.path.join(folder, entry) for entry in os.listdir(folder) if entry.endswith(".py"))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 22)
    except OSError:
        return b""


def _is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False  # the descriptor of the listing itself
