"""Files of other launchers as profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import InputError
from runner.private import open_named
from runner.profile.problems import ProfileErrors, ProfileProblem, printable

if TYPE_CHECKING:
    from runner.planning.interop.draft import Imported
    from runner.planning.interop.recognise import Kind


def import_profile(
    path: Path,
    kind: Kind | None = None,
    *,
    hosts: Sequence[str] = (),
    script: str | None = None,
    login: str | None = None,
) -> Imported:
    """The profile that says the same as a file of Accelerate, MPI, DeepSpeed or Slurm. Nothing of it is run.

    Args:
        kind: None: recognised from the content.
        hosts: For a file that names none, in the order of the node ranks.
        script: What runs, for a file that does not say.
        login: The login node: a job script becomes a profile that is run as a job of Slurm.

    Raises:
        InputError: It cannot be read or used.
    """
    from runner.planning.interop.read import read_foreign

    return read_foreign(_text(path), printable(str(path)), kind, hosts, script, login)


def _text(path: Path) -> str:
    from runner.planning.interop.read import MAX_SIZE

    name = printable(str(path))
    try:
        with open_named(path) as file:
            data = file.read(MAX_SIZE + 1) or b""
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {why}", "Name a file to import.", place=name) from None
    if len(data) > MAX_SIZE:
        raise InputError("larger than 1 MiB", "Name a configuration, a hostfile or a job script.", place=name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        what = f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        raise ProfileErrors([ProfileProblem(line, column, what, "save it as UTF-8", str(path))]) from None
