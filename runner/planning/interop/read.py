"""A text of any kind that is known → a profile."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import InputError
from runner.planning.interop import from_accelerate, from_deepspeed, from_hostfile, from_sbatch
from runner.planning.interop.draft import Imported, Translation, finish
from runner.planning.interop.recognise import Kind, recognise
from runner.profile.nodes import MappingNode, compose
from runner.profile.problems import ProfileErrors, ProfileProblem

MAX_SIZE = 1024 * 1024
"""Bytes of a file."""
_KINDS = "accelerate, hostfile, deepspeed or sbatch"


def read_foreign(
    text: str,
    source: str,
    kind: Kind | None = None,
    hosts: Sequence[str] = (),
    script: str | None = None,
    login: str | None = None,
) -> Imported:
    """The profile that says the same as a file of another launcher.

    Args:
        source: The file's name, in messages and for the profile.
        kind: None: recognised from the content.
        hosts: For a file that names none, in the order of the node ranks.
        script: What runs, for a file that does not say.
        login: The login node: a job script becomes a profile that is run as a job of Slurm.

    Raises:
        InputError: It cannot be used, with the lines.
    """
    found = kind or recognise(text)
    if found == "profile":
        raise InputError("this is a profile already", "Use it as it is: disttui plan shows what it runs.", place=source)
    if found is None:
        what = f"this is no file of {_KINDS}" if text.strip() else "the file is empty"
        raise InputError(what, f"Say by --from what it is: {_KINDS}.", place=source)
    if login is not None and (hosts or found != "sbatch"):
        what = (
            "--login is the only host of a job of Slurm" if hosts else f"--login is for a job script, this is {found}"
        )
        raise InputError(what, "Give one of the two." if hosts else "Leave it out.", place=source)
    draft = Translation(source, login=login or "")
    if found == "hostfile":
        from_hostfile.read(text, draft)
    elif found == "sbatch":
        from_sbatch.read(text, draft)
    elif found == "accelerate":
        from_accelerate.read(_mapping(text, draft), draft)
    else:
        from_deepspeed.read(_mapping(text, draft), draft, len(hosts))
    return finish(draft, hosts, script)


def _mapping(text: str, draft: Translation) -> MappingNode:
    # YAML allows no tab where JSON does; inside a string of JSON none stands.
    node = compose(text.expandtabs(2) if text.lstrip().startswith("{") else text, draft.source, draft.problems)
    if isinstance(node, MappingNode):
        return node
    raise ProfileErrors([*draft.problems, ProfileProblem(1, 1, "this is no mapping", "expected keys", draft.source)])
