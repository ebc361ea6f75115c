"""Files of other launchers as profiles, and profiles as files of other launchers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttui.runner import private
from disttui.runner.api.preparing import Prepared
from disttui.runner.errors import InputError
from disttui.runner.hosts.ship import train_parcel
from disttui.runner.paths import inside
from disttui.runner.private import open_named
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem, printable
from disttui.runner.profile.schema import Profile

if TYPE_CHECKING:
    from disttui.runner.planning.interop.draft import Imported
    from disttui.runner.planning.interop.read import Kind
    from disttui.runner.planning.interop.write import Exported, Target


def import_profile(
    path: Path,
    kind: Kind | None = None,
    *,
    hosts: Sequence[str] = (),
    script: str | None = None,
    login: str | None = None,
) -> Imported:
    """A profile from a file of Accelerate, MPI, DeepSpeed or Slurm. Runs nothing.

    Args:
        kind: None: recognised from the content.
        hosts: For a file that names none, in the order of the node ranks.
        script: The script, if the file does not name one.
        login: The login node: a job script becomes a profile that is run as a job of Slurm.

    Raises:
        InputError: It cannot be read or used.
    """
    from disttui.runner.planning.interop.read import read_foreign

    return read_foreign(_text(path), printable(str(path)), kind, hosts, script, login)


def refuse_foreign(path: Path) -> None:
    """Raise InputError for a configuration of Accelerate or DeepSpeed instead of a profile: it can be imported."""
    from disttui.runner.planning.interop.read import recognise

    try:
        found = recognise(_text(path))
    except InputError:
        return  # errors are reported when it is read as a profile
    if found in ("accelerate", "deepspeed"):
        name = printable(str(path))
        cure = f"Convert it: disttui profile import {name} -o NAME.yaml"
        raise InputError(f"a configuration of {found}, not a profile", cure, place=name)


def _text(path: Path) -> str:
    from disttui.runner.planning.interop.read import MAX_SIZE

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
        raise ProfileErrors([ProfileProblem(line, column, what, "save the file as UTF-8", str(path))]) from None


def export_profile(profile: Profile, target: Target, prepared: Prepared | None = None) -> Exported:
    """Files that do what a profile says. Writes nothing.

    Args:
        prepared: With what its hosts have, for values that the profile leaves to them.

    Raises:
        InputError: The profile leaves values to its hosts, or the target cannot do what it says.
    """
    from disttui.runner.planning.interop.write import BUILTIN, Need, explicit_plan, write
    from disttui.runner.planning.plan import make_plan
    from disttui.runner.planning.slurm import with_nodes

    if profile.slurm is not None:
        if target != "sbatch":
            cure = "Use --to sbatch, or remove the section from the profile."
            raise InputError(f"only a job script can express the slurm section of {profile.name}", cure)
        return write(explicit_plan(with_nodes(profile, profile.slurm)), target)
    if prepared is None:
        needs: dict[Target, tuple[Need, ...]] = {"script": ("python", "master"), "accelerate": ("master",)}
        return write(explicit_plan(profile, needs=needs.get(target, ())), target)
    planned = prepared.planned
    return write(make_plan(planned.profile, planned.facts, planned.recommendation, BUILTIN), target)


def save_exported(exported: Exported, profile: Profile, folder: Path) -> list[Path]:
    """Write the files of `export_profile` into a folder; replaces none.

    Raises:
        InputError: One is there already, or cannot be written.
    """
    from disttui.runner.planning.interop.write import BUILTIN

    files = {name: text.encode() for name, text in exported.files.items()}
    if profile.job.builtin:
        files[BUILTIN] = train_parcel().data
    written = []
    for name, data in files.items():
        path = inside(folder, name)
        try:
            private.make_folder(folder, 0o775)
            with path.open("xb") as file:
                file.write(data)
            if name.endswith(".sh"):
                path.chmod(0o755)
        except FileExistsError:
            raise InputError(
                "this file already exists", "Name another folder by -o.", place=printable(str(path))
            ) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(why, "Name another folder by -o.", place=printable(str(path))) from None
        written.append(path)
    return written
