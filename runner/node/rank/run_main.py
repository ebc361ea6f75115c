"""Turns this process into `python -u script` or `python -u -m module`, as if it had been started that way.

runpy's public functions restore `__main__` afterwards, which breaks pickling at exit and spawned workers. So this
module does what the interpreter does at its start (Modules/main.c, Python/pythonrun.c).
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import importlib.machinery
import os
import pkgutil
import runpy
import sys
import traceback
from types import ModuleType
from typing import Any, Callable, List, Sequence

from ...protocol.cause import Cause, is_consequence
from .identity import Reports
from .stack_server import tell_group

# The interpreter itself calls this for -m, for zips and for folders; it restores nothing.
_run_module_as_main: Any = vars(runpy)["_run_module_as_main"]

_LONGEST_MESSAGE = 4096
_EARLIER = "os io abc codecs encodings site stat posixpath genericpath _collections_abc _sitebuiltins".split()  # noqa: SIM905
"""Modules that Python loads at its start, before a file of the user can shadow them."""


def become(kind: str, value: str, args: Sequence[str], reports: Reports) -> None:
    """Run a script (a file, a zip, a folder) or a module as the main program.

    Returns if the interpreter then exits normally; raises SystemExit with the script's code.
    """
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    # Which of these exist depends on the version of Python.
    for name, fresh in (("__annotations__", {}), ("__cached__", None)):
        if name in vars(sys.modules["__main__"]):
            main.__dict__[name] = fresh
    sys.modules["__main__"] = main
    sys.argv = [value, *args]
    if hasattr(sys, "orig_argv"):  # novm
        sys.orig_argv = [sys.orig_argv[0], "-u", *(["-m"] if kind == "module" else []), value, *args]
    if kind == "module":
        body = _module(value)
    elif pkgutil.get_importer(_absolute(value)) is not None:
        body = _folder(value)
    else:
        body = _file(main, value)
    _unshadow()
    _run(body, reports)


def _module(name: str) -> Callable[[], Any]:
    sys.argv[0] = "-m"
    _put_first(os.getcwd())
    return lambda: _run_module_as_main(name)


def _folder(path: str) -> Callable[[], Any]:
    sys.path[0:0] = [_absolute(path)]
    return lambda: _run_module_as_main("__main__", False)


def _file(main: ModuleType, path: str) -> Callable[[], Any]:
    _put_first(os.path.dirname(os.path.realpath(path)))
    path = _absolute(path)
    sourceless = path.endswith(".pyc")
    kind = importlib.machinery.SourcelessFileLoader if sourceless else importlib.machinery.SourceFileLoader
    loader = kind("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader)

    def body() -> None:
        try:
            code: Any = loader.get_code("__main__") if sourceless else _compile(path)
        except OSError as error:
            sys.stderr.write(
                "%s: can't open file %r: [Errno %s] %s\n" % (sys.executable, path, error.errno, error.strerror)
            )
            raise SystemExit(2) from None
        exec(code, main.__dict__)  # noqa: S102

    return body


def _compile(path: str) -> Any:
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _absolute(path: str) -> str:
    """Make a path absolute as the interpreter does: not normalised; before 3.9 it is left unchanged."""
    return path if sys.version_info < (3, 9) else os.path.join(os.getcwd(), path)


def _put_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:0] = [folder]


def _unshadow() -> None:
    """Unload standard modules that the shim has imported and that a file of the user shadows.

    Without the shim the script would import its own file.
    """
    standard = os.path.dirname(os.__file__) + os.sep
    specs = [(name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items()) if "." not in name]
    loaded = {
        name for name, spec in specs if name not in _EARLIER and str(getattr(spec, "origin", None)).startswith(standard)
    }
    theirs = set()
    for folder in sys.path:
        if (folder + os.sep).startswith(standard[:-1]):
            break
        theirs.update(modules_in(folder) & loaded)
    for name in list(sys.modules):
        if name.partition(".")[0] in theirs:
            del sys.modules[name]


def modules_in(folder: str) -> "set[str]":
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return set()
    suffixes = tuple(importlib.machinery.all_suffixes())
    found = {entry.partition(".")[0] for entry in entries if entry.endswith(suffixes)}
    found.update(e for e in entries if "." not in e and os.path.exists(os.path.join(folder, e, "__init__.py")))
    return found


def _run(body: Callable[[], Any], reports: Reports) -> None:
    ended: List[int] = []
    said: "dict[str, str]" = {}
    pid = os.getpid()

    def tell_end() -> None:
        # A fork of the script that exits through sys.exit gets here as well.
        if ended and os.getpid() == pid:
            reports.say("exit", code=ended[0], **said)

    # Registered first, so called last: after the script's own threads and exit functions.
    atexit.register(tell_end)
    problem = None
    try:
        body()
        _tell_group(reports)
    except SystemExit as error:
        _tell_group(reports)
        ended.append(_exit_code(error.code))
        if isinstance(error.code, str):
            said["said"] = error.code[:_LONGEST_MESSAGE]
        raise
    except BaseException as error:
        problem = error
    if problem is None:
        ended.append(0)
        return
    ended.append(1)
    _strip(problem)
    if os.getpid() == pid:  # a fork of the script may fail without the rank
        reports.say("error", **_describe(problem))
    _print(problem)
    if isinstance(problem, KeyboardInterrupt) and _note_interrupt():
        return
    raise SystemExit(1)


def _tell_group(reports: Reports) -> None:
    """Report the process group of a short script before the polling thread has seen it."""
    try:
        tell_group(reports)
    except Exception:  # noqa: S110  # the script may have replaced anything in torch's modules
        pass


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _strip(problem: BaseException) -> None:
    """Remove this file's frames from the traceback: the script's own remain."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _strip.__code__.co_filename:
        trace = trace.tb_next
    problem.__traceback__ = trace


def _describe(problem: BaseException) -> "dict[str, str]":
    kind = type(problem)
    try:
        while inside := _members(problem):
            member = next((one for one in inside if not _is_echo(one)), inside[0])
            # An exception that was never raised itself has the location of its group.
            problem = member if member.__traceback__ else member.with_traceback(problem.__traceback__)
        kind, message = type(problem), str(problem)
        text = "".join(traceback.format_exception(kind, problem, problem.__traceback__))
    except Exception as error:
        message = text = "(%s while it was being printed)" % type(error).__name__
    return {
        "type": kind.__qualname__ if kind.__module__ == "builtins" else kind.__module__ + "." + kind.__qualname__,
        "message": message[:_LONGEST_MESSAGE],
        "traceback": text[-65536:],
    }


def _members(problem: BaseException) -> "list[BaseException]":
    """The exceptions in an ExceptionGroup, or in one of the backport package for older Pythons."""
    grouped = any(kind.__name__ == "BaseExceptionGroup" for kind in type(problem).__mro__)
    return list(getattr(problem, "exceptions", ())) if grouped else []


def _is_echo(problem: BaseException) -> bool:
    """Whether an exception only reports the end of another rank."""
    inside = _members(problem)
    words: Cause = {"kind": "exception", "code": None, "type": type(problem).__qualname__, "message": str(problem)}
    return all(map(_is_echo, inside)) if inside else is_consequence(words)


def _print(problem: BaseException) -> None:
    """Print an uncaught exception as the interpreter does."""
    kind, trace = type(problem), problem.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, problem, trace
    if sys.version_info >= (3, 12):  # novm
        sys.last_exc = problem
    try:
        sys.excepthook(kind, problem, trace)
    except SystemExit:
        raise
    except BaseException as error:
        _strip(error)
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(kind, problem, trace)


def _note_interrupt() -> bool:
    """Make the interpreter end by SIGINT after its normal exit, as it does for an interrupted script.

    It notes an interrupt only in code called by its own C functions, so one of these raises another.
    """
    run = ctypes.pythonapi.PyRun_String
    run.restype = ctypes.py_object
    run.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object]
    file_input = 257
    try:
        run(b"raise KeyboardInterrupt", file_input, {}, {})
    except KeyboardInterrupt:
        return True
    return False
