"""Profiles as files of other launchers, which run without disttui."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner import private
from runner.api.preparing import Prepared
from runner.errors import InputError
from runner.hosts.ship import train_parcel
from runner.paths import inside
from runner.profile import Profile
from runner.profile.problems import printable

if TYPE_CHECKING:
    from runner.planning.interop.write import Exported, Target


def export_profile(profile: Profile, target: Target, prepared: Prepared | None = None) -> Exported:
    """The files that do what a profile says. Nothing is written.

    Args:
        prepared: With what its hosts have, for values that the profile leaves to them.

    Raises:
        InputError: The profile leaves values to its hosts, or the target cannot do what it says.
    """
    from runner.planning.interop.explicit import BUILTIN, Need, explicit_plan
    from runner.planning.interop.write import write
    from runner.planning.plan import make_plan
    from runner.planning.slurm import with_nodes

    if profile.slurm is not None:
        if target != "sbatch":
            cure = "Use --to sbatch, or take the section out of the profile."
            raise InputError(f"only a job script can say what the section slurm of {profile.name} does", cure)
        return write(explicit_plan(with_nodes(profile, profile.slurm)), target)
    if prepared is None:
        needs: dict[Target, tuple[Need, ...]] = {"script": ("python", "master"), "accelerate": ("master",)}
        return write(explicit_plan(profile, needs=needs.get(target, ())), target)
    planned = prepared.planned
    return write(make_plan(planned.profile, planned.facts, planned.recommendation, BUILTIN), target)


def save_exported(exported: Exported, profile: Profile, folder: Path) -> list[Path]:
    """Write the files into a folder; none that is there is replaced.

    Raises:
        InputError: One is there already, or cannot be written.
    """
    from runner.planning.interop.explicit import BUILTIN

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
                "there is a file already", "Name another folder by -o.", place=printable(str(path))
            ) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(why, "Name another folder by -o.", place=printable(str(path))) from None
        written.append(path)
    return written
