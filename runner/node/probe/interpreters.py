"""The Pythons of a host, and which of them have torch. Nothing of torch is ever imported to find out."""

from __future__ import annotations

import glob
import json
import os
import shutil
from functools import partial
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..together import together
from .child import Answer, ask
from .torch_files import Layout, layout, torch_in

_MARK = "disttui-interpreter "
# Runs in the interpreter that is asked; Python 2 must survive it as well.
_QUESTION = (
    "import sys, json; print(%r + json.dumps([sys.executable, sys.prefix, "
    "'.'.join(map(str, sys.version_info[:3])), [p for p in sys.path if p]]))" % _MARK
)
# `$1` names the interpreter, empty: whichever the line has put first in PATH. `$2` is the question.
_AFTER_ACTIVATE = """
disttui_status=$?
disttui_python=$1
[ -n "$disttui_python" ] || disttui_python=$(command -v python3 || command -v python) || exit 127
"$disttui_python" -c "$2"
exit $disttui_status
"""
_ENVIRONMENTS = (".venv", "venv", "env")
_CONDA = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda")
_MOST = 64


class _Found(NamedTuple):
    path: str
    source: str
    layout: Layout


def facts(python: str, activate: str, workdir: str, problems: List[str], limit: float = 15.0) -> List[Dict[str, Any]]:
    """Return the probe's `interpreters`, the one that the profile means first.

    Conda and venv environments are listed only if they have torch.

    Args:
        python: The profile's interpreter; empty or `auto`: none is named.
        activate: The profile's shell line, whose environment `python` is then looked at in.
        workdir: Where to look for virtual environments, besides the home.
        problems: Sentences are added here.
        limit: Seconds for the shell line, and for each interpreter that has to be asked.
    """
    python = "" if python == "auto" else os.path.expanduser(python)
    named = os.path.join(workdir, python) if os.sep in python else python
    tasks: Dict[str, Callable[[], Optional[_Found]]] = {}
    if activate.strip():
        tasks["activate"] = partial(_activated, activate, named, workdir, limit, problems)
    elif python:
        named = shutil.which(named) or named
        tasks["profile"] = partial(_look, named, "profile", limit)
    for path, source in islice(_candidates(workdir), _MOST):
        tasks[path] = partial(_look, path, source, limit)
    found = []
    for name, result in together(tasks, limit + 1).items():
        if isinstance(result, _Found):
            found.append(result)
        elif isinstance(result, Exception):
            problems.append(f"{name if name != 'profile' else named} cannot be looked at: {result}")
    return list(_described(found))


def _candidates(workdir: str) -> Iterator[Tuple[str, str]]:
    """Give (path, source) of every program that may be a Python, each once."""
    seen: Set[str] = set()
    for path, source in _places(workdir):
        if path not in seen and os.access(path, os.X_OK):
            seen.add(path)
            yield path, source


def _places(workdir: str) -> Iterator[Tuple[str, str]]:
    yield shutil.which("python3") or shutil.which("python") or "", "path"
    roots = [os.environ.get("CONDA_PREFIX", ""), *(os.path.expanduser(path) for path in _CONDA)]
    for root in filter(None, roots):
        for prefix in [root, *sorted(glob.glob(os.path.join(glob.escape(root), "envs", "*")))]:
            yield os.path.join(prefix, "bin", "python"), "conda"
    for folder in dict.fromkeys((workdir, os.path.expanduser("~"))):
        for name in _ENVIRONMENTS:
            yield os.path.join(folder, name, "bin", "python"), "venv"


def _look(path: str, source: str, limit: float) -> Optional[_Found]:
    """Return what is at `path`, None if it is no Python 3. Raises OSError when it cannot be told."""
    known = layout(path)
    if known is not None:
        return _Found(path, source, known)
    answer = ask([path, "-c", _QUESTION], limit)
    if answer.code is None:
        raise TimeoutError(f"it gave no answer in {limit:g} s and was killed")
    found = _answered(answer, source)
    if found is None and source == "profile":
        raise OSError(f"it is no Python 3 ({_last_line(answer)})")
    return found


def _activated(activate: str, python: str, workdir: str, limit: float, problems: List[str]) -> Optional[_Found]:
    """Run the profile's shell line where the job will run it, and ask the interpreter that it leads to."""
    folder = workdir if os.path.isdir(workdir) else "/"
    answer = ask(["bash", "-c", activate + _AFTER_ACTIVATE, "bash", python, _QUESTION], limit, folder)
    if answer.code is None:
        problems.append(f"activate did not end in {limit:g} s and was killed: {_last_line(answer)}")
    elif answer.code:
        problems.append(f"activate ended with status {answer.code}: {_last_line(answer)}")
    found = _answered(answer, "profile" if python else "activate")
    if found is None and answer.code == 0:
        problems.append(f"no Python 3 after activate: {_last_line(answer)}")
    return found


def _answered(answer: Answer, source: str) -> Optional[_Found]:
    lines = [line for line in answer.out.splitlines() if line.startswith(_MARK)]
    if not lines:
        return None
    try:
        path, prefix, version, folders = json.loads(lines[-1][len(_MARK) :])
    except ValueError:
        return None
    return _Found(path, source, Layout(prefix, version, folders)) if version.startswith("3.") else None


def _last_line(answer: Answer) -> str:
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it says nothing"


def _described(found: List[_Found]) -> Iterator[Dict[str, Any]]:
    seen: Set[Tuple[str, str]] = set()
    for item in found:
        torch = torch_in(item.layout.folders) or {}
        key = (os.path.realpath(item.layout.prefix), torch.get("folder", ""))
        if key in seen or (not torch and item.source in ("conda", "venv")):
            continue
        seen.add(key)
        yield {
            "path": item.path,
            "version": item.layout.version,
            "torch": torch.get("torch"),
            "cuda": torch.get("cuda"),
            "nccl": torch.get("nccl"),
            "source": item.source,
        }
