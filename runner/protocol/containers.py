"""The words that start a container around a launcher, and those that remove its remains.

Ranks remain processes of the host and of the same user, with the host's network and process ids: so stop, stacks,
memory and leases work as without a container. Variables are named here and taken from the environment, never in argv.
"""

from __future__ import annotations

from typing import Literal, Optional, Sequence, Tuple, TypedDict

Runtime = Literal["podman", "docker", "apptainer", "enroot"]


class ContainerSpec(TypedDict):
    """A profile's container, with what the host's GPUs need."""

    runtime: Runtime
    image: str
    mounts: list[str]
    """SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro."""
    options: list[str]
    gpus: bool
    """Whether to pass all NVIDIA GPUs through; CUDA_VISIBLE_DEVICES chooses among them."""


_GPUS = {"podman": "--device=nvidia.com/gpu=all", "docker": "--gpus=all", "apptainer": "--nv"}
"""enroot adds GPUs through a hook of its own."""


def start_words(
    container: ContainerSpec,
    workdir: str,
    *,
    mounts: Sequence[str] = (),
    variables: Sequence[str] = (),
    name: str = "",
    user: Optional[Tuple[int, int]] = None,
) -> list[str]:
    """The words before the launcher's own.

    Args:
        mounts: Further mounts, in the same form; ignored if the container defines its own at the same target.
        variables: Names of variables that the container takes from the environment.
        name: The container's name, or "" for none.
        user: The user and the group that the ranks run as; None: those of the image, as without disttui.
    """
    runtime, own = container["runtime"], container["mounts"]
    there = {_target(one) for one in own}  # two mounts at one target are rejected
    mounts = [*own, *(one for one in mounts if _target(one) not in there)]
    gpus = [_GPUS[runtime]] if container["gpus"] and runtime in _GPUS else []
    end = [*gpus, *container["options"], container["image"]]
    if runtime == "apptainer":
        return ["apptainer", "exec", *(f"--bind={one}" for one in mounts), f"--pwd={workdir}", *end]
    if runtime == "enroot":
        mount = [f"--mount={_source_and_target(one)}" for one in mounts]
        # It has no option for the folder.
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', workdir]
        return ["enroot", "start", *(f"--env={one}" for one in variables), *mount, *end, *inside]
    words = [runtime, "run", "--rm", "--interactive", "--network=host", "--pid=host"]
    words.append("--security-opt=label=disable")
    if runtime == "podman":
        # Without root, its --ipc=host needs a /dev/mqueue, which not every host has.
        words += ["--volume=/dev/shm:/dev/shm", *(["--replace"] if name else [])]
        # Without root, the user would be root in the container, and other users there would not be the user outside.
        words += ["--userns=keep-id"] if user and user[0] else []
    else:
        words += ["--ipc=host", "--ulimit=memlock=-1", *([f"--user={user[0]}:{user[1]}"] if user else [])]
    words += [f"--name={name}"] if name else []
    words += [f"--volume={_source_and_target(one)}" for one in mounts]
    return [*words, *(f"--env={one}" for one in variables), f"--workdir={workdir}", *end]


def container_name(run: str, node: int) -> str:
    """The name of a run's container on a host."""
    return f"disttui-{run}-{node}"


def removal_words(runtime: object, name: str) -> list[str]:
    """The command that removes a container if it exists; empty if ended processes leave nothing behind."""
    if runtime == "podman":
        return ["podman", "rm", "--force", "--ignore", "--time=0", name]
    return ["docker", "rm", "--force", name] if runtime == "docker" else []


def _target(mount: str) -> str:
    return _source_and_target(mount).split(":")[1].rstrip("/")


def _source_and_target(mount: str) -> str:
    return mount if ":" in mount else f"{mount}:{mount}"
