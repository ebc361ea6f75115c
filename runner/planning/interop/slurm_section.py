"""Options of a job script → the section `slurm` of a profile, which asks Slurm for the same."""

from __future__ import annotations

from pydantic import ValidationError

from runner.planning.interop.draft import Translation, count, shown
from runner.profile.slurm import Slurm

_KEYS = ("partition", "time", "account", "qos")


def take(line: int, name: str, value: str, draft: Translation) -> bool:
    """Take over one option that says nothing of counts; False where it is no option that the section has."""
    if name in _KEYS:
        if flaw := _flaw(name, value):
            draft.wrong(line, 1, f"{name}: {flaw[0]}", flaw[1])
        draft.slurm[name] = value
        draft.translated(line, name, f"{shown(value)} → slurm.{name}")
        return True
    option = _option(name, value)
    if _flaw("options", [option]):
        return False
    options = draft.slurm.setdefault("options", [])
    assert isinstance(options, list)
    options.append(option)
    draft.translated(line, name, "→ slurm.options")
    return True


def why_not(name: str, value: str) -> str:
    """Why the section does not take an option."""
    return next(iter(_flaw("options", [_option(name, value)]) or ()), "")


def take_counts(
    nodes: int, tasks: int | None, gpus: int | None, cpus: tuple[int, str] | None, draft: Translation
) -> None:
    """Take over what is asked for on each node, and say what only the user knows.

    Args:
        cpus: Line and value of `--cpus-per-task`.
    """
    draft.slurm = {"nodes": nodes, **({"gpus_per_node": gpus} if gpus else {}), **draft.slurm}
    draft.launch["launcher"] = "slurm"
    each = count(draft, cpus[0], "cpus-per-task", cpus[1]) if cpus is not None else None
    if cpus is not None and each is not None:
        draft.slurm["cpus_per_node"] = each * (tasks or 1)
        what = f"{each * (tasks or 1)} processors on each node → slurm.cpus_per_node"
        draft.translated(cpus[0], "cpus-per-task", what)
    what = "its default is in the home: give a folder that the login node and the nodes share, if that is none"
    draft.ambiguous(0, "launch.run_dir", what)
    if "workdir" not in draft.job:
        draft.ambiguous(0, "job.workdir", "sbatch starts in the folder where it is typed: write that folder")


def _option(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _flaw(key: str, value: object) -> tuple[str, str] | None:
    """What is wrong with a value of the section, and what was expected."""
    try:
        Slurm.model_validate({key: value})
    except ValidationError as error:
        context = error.errors()[0].get("ctx", {})
        return str(context.get("what", "no text")), str(context.get("expected", ""))
    return None
