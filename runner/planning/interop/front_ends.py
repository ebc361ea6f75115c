"""Translates programs of training libraries to the launcher commands that they run, according to their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_AS_PROGRAM = {
    "torchtune._cli.tune": "tune",
    **dict.fromkeys(("composer", "composer.cli.launcher"), "composer"),
    "llamafactory.cli": "llamafactory-cli",
    "axolotl.cli.main": "axolotl",
    "swift.cli.main": "swift",
    **dict.fromkeys(("horovod.runner", "horovod.runner.launch"), "horovodrun"),
    **dict.fromkeys(("ray", "ray.scripts.scripts"), "ray"),
}
"""Modules that are started as `python -m MODULE`, each with its program."""
_STARTS = {
    "axolotl": ("train",),
    "tune": ("run",),
    "llamafactory-cli": ("train",),
    "swift": ("sft", "pt", "rlhf"),
    "megatron": ("sft", "pt", "rlhf"),
    "fabric": ("run",),
    "colossalai": ("run",),
    "litgpt": ("pretrain", "finetune", "finetune_lora", "finetune_full", "finetune_adapter", "finetune_adapter_v2"),
    "ray": ("start", "job", "submit", "up", "exec"),
    "composer": (),
    "deepy.py": (),
    "horovodrun": (),
    "verl.trainer.main_ppo": (),
    "openrlhf.cli.train_ppo_ray": (),
}
"""Program → its commands that start ranks; () if all do."""
_OF_RAY = (
    "Ray starts its workers itself",
    "Use sbatch for this script, or name one for torchrun by --script.",
)
_REFUSED = {
    "composer": (
        "composer starts the ranks itself",
        "Write torchrun --nproc-per-node N SCRIPT instead, with -m for a module.",
    ),
    "deepy.py": (
        "GPT-NeoX's deepy.py starts the ranks itself",
        "Use sbatch for this script, or name one for torchrun by --script.",
    ),
    "litgpt": (
        "litgpt starts the ranks itself",
        "Write torchrun --nproc-per-node N -m litgpt … --devices N --num_nodes NODES instead.",
    ),
    "horovodrun": (
        "horovodrun starts the ranks itself",
        "Write mpirun -np N python SCRIPT instead, if your Horovod is built with MPI.",
    ),
    **dict.fromkeys(("ray", "verl.trainer.main_ppo", "openrlhf.cli.train_ppo_ray"), _OF_RAY),
}
_MEETING = ("FORCE_TORCHRUN", "NPROC_PER_NODE", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that some of these programs translate to launcher options."""
_OF_AXOLOTL = ("--main-process-port", "--num-processes")
"""Options that axolotl passes to Accelerate."""
_FABRIC = {"--accelerator": "LT_ACCELERATOR", "--strategy": "LT_STRATEGY", "--precision": "LT_PRECISION"}


@dataclass
class Behind:
    """The command that a program runs."""

    words: list[str]
    """The command; empty if it cannot be translated."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that the program sets for its script."""
    taken: tuple[str, ...] = ()
    """Variables that were translated to options."""
    why: str = ""
    cure: str = ""
    """What to write instead."""


def as_program(module: str) -> str:
    """Return the program that `python -m MODULE` runs, or "" for a module that is the job itself."""
    return _AS_PROGRAM.get(module, "")


def starts_ranks(words: Sequence[str]) -> bool:
    """Whether the words call a program of a training library with a command that starts ranks."""
    program = words[0].rpartition("/")[2] if words else ""
    if program == "lightning":  # its other commands belong to Lightning's apps
        return list(words[1:3]) == ["run", "model"]
    return program in _STARTS and (not _STARTS[program] or (words[1:2] != [] and words[1] in _STARTS[program]))


def behind(words: Sequence[str], given: Mapping[str, str]) -> Behind:
    """Return the command that a program runs; `starts_ranks` must be true for the words.

    Args:
        given: The known variables in its environment.
    """
    program, rest = words[0].rpartition("/")[2], list(words[1:])
    if program in _REFUSED:
        return Behind([], why=_REFUSED[program][0], cure=_REFUSED[program][1])
    if program == "axolotl":
        return _axolotl(rest[1:])
    if program == "tune":
        return _torchtune(rest[1:])
    if program in ("lightning", "fabric"):
        return _fabric(rest[1 + (rest[1:2] == ["model"]) :])
    if program == "colossalai":
        return _colossalai(rest[1:])
    if program == "llamafactory-cli":
        return Behind([*_torchrun(given), "-m", "llamafactory.launcher", *rest[1:]], taken=_MEETING)
    method = "sft" if program == "swift" and rest[0] == "pt" else rest[0]
    module = f"swift.cli.{'_megatron.' if program == 'megatron' else ''}{method}"
    if not {"NPROC_PER_NODE", "NNODES"} & given.keys():
        return Behind(["python", "-m", module, *rest[1:]])
    return Behind([*_torchrun(given, "1"), "-m", module, *rest[1:]], taken=_MEETING)


def _torchrun(given: Mapping[str, str], each: str = "gpu") -> list[str]:
    nodes = [f"--nnodes={given['NNODES']}"] if given.get("NNODES") else []
    return ["torchrun", f"--nproc-per-node={given.get('NPROC_PER_NODE') or each}", *nodes]


def _option(words: list[str], name: str) -> str | None:
    """Remove an option and its value from the words; return the value, or None if the option is not there."""
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == name:
            del words[at]
            return value if equals else words.pop(at) if at < len(words) else ""
    return None


def _axolotl(words: list[str]) -> Behind:
    at = words.index("--") if "--" in words else len(words)
    own, options = words[:at], words[at + 1 :]
    if any(_option(own, name) is not None for name in ("--cloud", "--sweep")):
        return Behind([], why="axolotl starts it elsewhere, or several times", cure="Omit --cloud and --sweep.")
    launcher = _option(own, "--launcher") or "accelerate"
    launcher = "python" if "--no-accelerate" in own else launcher
    if launcher not in ("accelerate", "torchrun", "python"):
        return Behind([], why="its launcher is unknown", cure="Write accelerate, torchrun or python as its --launcher.")
    own = [word for word in own if word not in ("--accelerate", "--no-accelerate")]
    if launcher == "accelerate":
        given = [(name, _option(own, name)) for name in _OF_AXOLOTL]
        options = [*(f"{name}={value}" for name, value in given if value), *options]
    start = {"accelerate": ["accelerate", "launch"], "torchrun": ["torchrun"]}.get(launcher)
    return Behind([*(["python"] if start is None else [*start, *options]), "-m", "axolotl.cli.train", *own])


def _torchtune(words: list[str]) -> Behind:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 if "=" in words[at] or words[at] in ("--standalone", "--no-python", "--no_python") else 2
    options, recipe, args = words[:at], "".join(words[at : at + 1]), words[at + 1 :]
    config = _option(list(args), "--config") or ""
    start = ["torchrun", *options] if options else ["python"]
    path = PurePosixPath(recipe)
    if path.suffix == ".py" and (not config or config.endswith((".yaml", ".yml"))):
        return Behind([*start, "-m", ".".join(path.with_suffix("").parts), *args])
    copies = [] if path.suffix == ".py" else [(recipe, "recipe.py")]
    copies += [] if not config or config.endswith((".yaml", ".yml")) else [(config, "config.yaml")]
    copied = dict(copies)
    command = [*start, copied.get(recipe, recipe), *(copied.get(arg, arg) for arg in args)]
    cure = f"Copy them ({'; '.join(f'tune cp {name} {to}' for name, to in copies)}), and write: {' '.join(command)}"
    return Behind([], why="tune finds recipes and settings by its own names", cure=cure)


def _fabric(words: list[str]) -> Behind:
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    own, job = words[:script], words[script:]
    devices, nodes = _option(own, "--devices") or "1", _option(own, "--num-nodes") or "1"
    env = {"LT_CLI_USED": "1", "LT_DEVICES": devices, "LT_NUM_NODES": nodes}
    env |= {variable: value for name, variable in _FABRIC.items() if (value := _option(own, name))}
    listed = [one for one in devices.split(",") if one]
    each = "gpu" if devices == "-1" else str(len(listed)) if "," in devices else devices
    if not job or devices == "auto" or env.get("LT_ACCELERATOR") in ("tpu", "mps"):
        why = "the number of ranks that it starts is unknown"
        return Behind([], why=why, cure="Write torchrun --nproc-per-node N SCRIPT instead.")
    each = "1" if env.get("LT_STRATEGY") == "dp" else each
    return Behind(["torchrun", f"--nproc-per-node={each}", f"--nnodes={nodes}", *job], env)


def _colossalai(words: list[str]) -> Behind:
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    own, job = words[:script], words[script:]
    more = [f"--{one}" for one in (_option(own, "--extra-launch-args") or "").split(",") if one]
    hosts = _option(list(own), "--host") or _option(list(own), "-H")
    nodes = [f"--nnodes={len(hosts.split(','))}"] if hosts else []
    if not job:
        return Behind([], why="its script is not named", cure="Write torchrun --nproc-per-node N SCRIPT instead.")
    return Behind(["torchrun", *own, *more, *nodes, *job])
