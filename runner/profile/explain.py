"""What pydantic found → problems with their place, in the words of the profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode
from disttui.runner.profile.problems import Path, ProfileProblem, SourceLocation, near, quoted
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import (
    Container,
    Data,
    Environment,
    Host,
    Job,
    Launch,
    Metrics,
    Notify,
    OnEnd,
    Parallel,
    Sync,
    Watch,
    WatchEvent,
    WatchGoal,
    WatchLog,
    WatchNonFinite,
    WatchPlateau,
    WatchSlow,
    WatchSpike,
    WatchStall,
)

_SECTIONS: dict[str, type[BaseModel]] = {
    "": Profile, "hosts": Host, "job": Job, "launch": Launch, "parallel": Parallel, "metrics": Metrics,
    "on_end": OnEnd, "container": Container, "data": Data, "notify": Notify, "job.sync": Sync,
    "job.environment": Environment, "watch": Watch,
    "watch.nonfinite": WatchNonFinite, "watch.spike": WatchSpike, "watch.slow": WatchSlow, "watch.goal": WatchGoal,
    "watch.plateau": WatchPlateau, "watch.log": WatchLog, "watch.stall": WatchStall,
    **dict.fromkeys(("watch.disk", "watch.memory", "watch.host"), WatchEvent),
}  # fmt: skip
_SYNONYMS = {
    "nproc": "num_processes", "nproc_per_node": "num_processes", "slots": "num_processes", "ip": "address",
    "nic": "interface", "ifname": "interface", "hostname": "host", "cwd": "workdir", "cmd": "command",
    "environment": "env", "venv": "activate", "max_restarts": "restarts", "master_addr": "master",
    "master_port": "ports", "port": "ports", "version": "disttui",
}  # fmt: skip
_LISTS = {
    "hosts": "[node1, node2]", "gpus": "[0, 1]", "args": '[--steps, "300"]', "resume_args": "[--resume, auto]",
    "command": "[./train.sh, fast]", "setup": "[make]", "outputs": "[out/]",
    "mounts": "[~/data]", "options": "[--memory=64g]", "events": "[ended, failed]",
    "ports": "[29500, 29599]",
}  # fmt: skip
_MISSING = {
    "disttui": "expected 'disttui: 1', the version of the schema",
    "to": "expected its path on the hosts, like ~/data/tokens.bin",
    "from": "expected where it comes from: a path of this machine, host:/path or an address",
    "host": "expected an ssh alias, user@host:port or local",
    "hosts": "expected a list, like [node1, node2] or [local]",
    "job": "expected what to run, like {builtin: bytegpt} or {script: train.py}",
}
_EXPECTED = {
    "string": "expected text (in quotes, if need be)", "int": "expected a whole number", "float": "expected seconds",
    "bool": "expected true or false", "literal": "expected a word", "none": "expected nothing",
}  # fmt: skip


def explain(error: ValidationError, root: MappingNode) -> list[ProfileProblem]:
    """Every problem of `error`, placed in the tree that was validated."""
    return [problem for found in error.errors(include_url=False, include_input=False) for problem in _one(found, root)]


def _one(found: Mapping[str, Any], root: MappingNode) -> list[ProfileProblem]:
    kind, path, context = found["type"], found["loc"], found.get("ctx", {})
    if kind == "conflicts":
        return [ProfileProblem.at(_locate(root, at)[0], what, expected) for what, expected, at in context["flaws"]]
    if is_key := path[-1:] == ("[key]",):
        path = path[:-1]
    place, node = _locate(root, path, key=is_key or kind == "extra_forbidden")
    name = next((str(part) for part in reversed(path) if isinstance(part, str)), "profile")
    if kind == "profile":
        label = "" if is_key else f"{quoted(name)[1:-1]}: "
        return [ProfileProblem.at(place, label + context["what"], context["expected"])]
    if kind == "missing":
        return [ProfileProblem.at(place, f"{quoted(name)} is missing", _MISSING.get(name, ""))]
    if kind == "extra_forbidden":
        return [ProfileProblem.at(place, f"unknown key {quoted(name)}", _meant(name, path))]
    return [ProfileProblem.at(place, f"{quoted(name)[1:-1]}: {_describe(node)}", _expected(kind, name))]


def _locate(root: MappingNode, path: Path, *, key: bool = False) -> tuple[SourceLocation, Node]:
    """Where `path` stands, or its last key does; as near above as the tree has it."""
    place = root.place
    current: Node = root
    for part in path:
        if isinstance(current, MappingNode) and part in current.entries:
            place, current = current.entries[str(part)]
        elif isinstance(current, SequenceNode) and isinstance(part, int) and part < len(current.items):
            current = current.items[part]
            place = current.place
        else:
            return current.place, current
    return place if key else current.place, current


def _describe(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return (node.text or "nothing") if node.is_null else quoted(node.text)
    return "a list" if isinstance(node, SequenceNode) else "a mapping"


def _expected(kind: str, name: str) -> str:
    if kind.startswith(("model", "dict", "mapping")):
        return "expected a host, like node1" if name == "hosts" else "expected a mapping, like {key: value}"
    if kind.startswith(("tuple", "list")):
        return f"expected a list, like {_LISTS.get(name, '[a, b]')}"
    return next((text for start, text in _EXPECTED.items() if kind.startswith(start)), "expected something else")


def _meant(name: str, path: Path) -> str:
    section = str(path[0]) if len(path) > 1 else ""
    if len(path) > 2 and f"{path[0]}.{path[1]}" in _SECTIONS:
        section = f"{path[0]}.{path[1]}"
    known = _keys(_SECTIONS[section])
    if (synonym := _SYNONYMS.get(name)) in known:
        return f"did you mean {synonym!r}?"
    for other, model in _SECTIONS.items():
        if name in _keys(model):
            return f"it belongs under '{other}'" if other else "it belongs at the top level"
    if meant := near(name, known):
        return f"did you mean {meant!r}?"
    return f"expected one of {', '.join(known)}"


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or key for key, field in model.model_fields.items()]
