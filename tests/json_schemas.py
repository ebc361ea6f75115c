"""docs/schemas/disttui-1.json: the JSON Schemas of what every command prints with --json, from the types it prints.

`python -m tests.json_schemas` writes it anew; tests/unit/test_json_schemas.py fails where it differs, and holds real
output of every command against it. The number is that of the format: fields are added under the same one, and a field
that is removed or means something else begins the next.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from disttui.runner.api.comparing import SECTIONS
from disttui.runner.api.following import Fired
from disttui.runner.api.leasing import HostLeases, Moved, WaitingPart
from disttui.runner.api.sweeping import Sweep
from disttui.runner.api.tracking import Sent
from disttui.runner.cli.app import cli
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.library.git import Commit
from disttui.runner.planning.checks import Check, HostDifference
from disttui.runner.planning.preflight import Finding
from disttui.runner.planning.recommend import Advice
from disttui.runner.profile.effects import Effect, Secret
from disttui.runner.protocol.cause import Cause
from disttui.runner.protocol.files import Exit
from disttui.runner.protocol.leases import Lease
from disttui.runner.render.waiting import Explain
from disttui.runner.runs.summary import RunStatus
from disttui.runner.runs.watch import HostNow

PAGE = Path(__file__).parent.parent / "docs" / "schemas" / "disttui-1.json"
Json = dict[str, Any]
Hint = Any


class Obj(NamedTuple):
    """An object that has no class of its own."""

    fields: Mapping[str, Hint]
    optional: Collection[str] = ()


class Lines(NamedTuple):
    """One object a line."""

    hint: Hint


def obj(optional: str = "", /, **fields: Hint) -> Obj:
    return Obj(fields, optional.split())


def _also(base: type, **fields: Hint) -> Obj:
    """The fields of a dataclass or a TypedDict, and more."""
    return Obj({**get_type_hints(base), **fields}, getattr(base, "__optional_keys__", ()))


def _either(*hints: Hint) -> tuple[str, tuple[Hint, ...]]:
    return ("either", hints)


_RECORD = dict[str, object]
"""What a script or a host has written."""
_ERROR_FIELDS: dict[str, Hint] = {
    "code": Literal[
        "input",
        "profile",
        "trust",
        "usage",
        "check",
        "host",
        "link-lost",
        "remote",
        "interrupted",
        "internal",
        "failed",
    ],
    **dict.fromkeys(("what", "cure", "host", "place"), str),
    "problems": list[_RECORD],
}
ERROR = Obj(_ERROR_FIELDS, ("problems",))
_ERRORS = {"errors": ("table", ERROR), "unreached": list[str]}
_VALUES = ("list", obj(key=str, value=str, place=str))
_HOST_LOG = {"host": str, "attempt": int}
_SYNCED: dict[str, Hint] = {
    "cloned": bool,
    "received": list[str],
    "sent": int,
    "saved": list[str],
    "not_saved": dict[str, str],
    "conflicts": dict[str, str],
}
_SAVED = _either(
    obj(profile=str, file=str, commit=str | None, conflict=str | None), obj(library=str, profile=None | str)
)
_FAILURE: dict[str, Hint] = {
    "node": int,
    "host": str,
    "rank": int | None,
    "kind": str,
    "type": str,
    "message": str,
    "code": int | None,
    "at": float,
    "traceback": str,
    "oom": object,
}
_OF_RUN = obj(run=str, error=ERROR)
_RUN = Lines(
    _either(
        obj(type=Literal["log"], **_HOST_LOG, rank=int, line=str),
        obj(type=Literal["metrics"], **_HOST_LOG, rank=int, record=_RECORD),
        obj(type=Literal["event", "telemetry", "exit"], host=str, record=_RECORD),
        obj(type=Literal["link"], host=str, state=str, note=str),
        obj(type=Literal["say"], text=str),
        obj(type=Literal["end"], run=str, result=Exit, logs=str),
        obj(type=Literal["detached"], run=str),
    )
)
_HOST_PLAN = obj(
    node_rank=int,
    name=str,
    num_processes=int,
    first_rank=int,
    gpus=list[int] | None,
    python=str,
    workdir=str,
    activate=str | None,
    command=list[str],
    shell=str,
)
_STORY: dict[str, Hint] = {
    "run": str,
    "name": str,
    "by": str,
    "hosts": list[str],
    "nproc": list[int],
    "started": float,
    "ended": float | None,
    "state": str | None,
    "code": int | None,
    "cause": Cause | None,
    "attempt": int,
    "metrics": _RECORD,
    "explain": Explain | None,
    "source": str | None,
    "profile": _RECORD,
    "versions": dict[str, _RECORD],
    "timeline": list[_RECORD],
    "causes": ("list", obj(attempt=int, words=str)),
    "problem": str | None,
    "unconfirmed": list[str],
}

OUTPUTS: dict[str, Hint] = {
    "error": Obj({"type": Literal["error"], **_ERROR_FIELDS}, ("problems",)),
    "probe": ("list", _either(obj(host=str, facts=HostFacts), obj(host=str, error=ERROR))),
    "exec": Lines(_either(obj(host=str, line=str), obj(host=str, exit=int), obj(host=str, error=ERROR))),
    "check": Lines(
        _either(
            _also(Check, type=Literal["check"]),
            obj(
                type=Literal["end"],
                passed=bool,
                hosts=list[str],
                differences=list[HostDifference],
                connections=(
                    "list",
                    obj(source=str, target=str, address=str, port=int, fixed=bool, ms=float | None, error=str),
                ),
            ),
            obj(id=str, about=str),
        )
    ),
    "run": _RUN,
    "rerun": _RUN,
    "attach": _RUN,
    "wait": obj(
        code=int,
        runs=(
            "list",
            _either(
                obj(
                    run=str,
                    met=str | None,
                    code=int,
                    state=str,
                    step=object,
                    steps=object,
                    loss=object,
                    error=None,
                    explain=Explain | None,
                ),
                obj(run=str, met=None, error=obj(code=str, what=str, cure=str)),
            ),
        ),
    ),
    "ps": ("list", _also(RunStatus, explain=Explain | None)),
    "stop": (
        "list",
        _either(
            obj(
                run=str,
                error=None,
                state=str | None,
                ended_before=bool,
                hosts=list[str],
                left=("list", obj(host=str, pid=int, process=str)),
                unconfirmed=list[str],
            ),
            _OF_RUN,
        ),
    ),
    "logs": Lines(
        _either(
            obj(type=Literal["log"], **_HOST_LOG, rank=int | None, time=float | None, line=str),
            obj(type=Literal["say"], host=str, text=str),
        )
    ),
    "diagnose": obj(
        run=str,
        state=str,
        attempt=int,
        causes=(
            "list",
            obj(
                attempt=int,
                **_FAILURE,
                words=str,
                hint=_either(None, obj(name=str, text=str)),
                consequences=("list", Obj(_FAILURE)),
            ),
        ),
        sentences=list[str],
        slow=list[str],
        kept=list[_RECORD],
        ranks=dict[str, _RECORD],
        explain=Explain | None,
    ),
    "top": Lines(obj(hosts=list[HostNow])),
    "sweep": Sweep,
    "notify": ("list", obj(host=str, places=dict[str, str] | None, error=_either(None, ERROR))),
    "watch": list[Fired],
    "completion": obj(script=str),
    "profile validate": (
        "list",
        obj(
            "hosts values runs doubt",
            profile=str,
            hosts=list[str],
            values=_VALUES,
            runs=("list", obj(key=str, words=str)),
            doubt=str,
            errors=("list", ERROR),
        ),
    ),
    "profile plan": obj(
        hosts=("list", _HOST_PLAN),
        num_machines=int,
        world_size=int,
        backend=str,
        strategy=str,
        layout=dict[str, int] | None,
        precision=str,
        master=str,
        reasons=dict[str, str],
        runs=list[Effect],
        secrets=list[Secret],
        warnings=list[Advice],
        findings=list[Finding],
        batch_script=str | None,
    ),
    "profile import": obj(
        profile=str,
        file=str | None,
        notes=("list", obj(line=int, key=str, fate=str, what=str)),
        missing=_either(None, ERROR),
        guess=_either(None, ERROR),
    ),
    "profile export": obj(files=list[str], notes=list[str]),
    "profile bytegpt": obj(help=str),
    "runs show": _either(Obj(_STORY), ("list", Obj(_STORY)), ("list", obj(path=str, size=int, sha256=str))),
    "runs diff": obj(
        runs=list[str],
        changes=list[str],
        unknown=list[str],
        **dict.fromkeys(SECTIONS, ("list", obj(key=str, before=str | None, after=str | None))),
    ),
    "runs metrics": Lines(
        _either(
            Obj({**_HOST_LOG, "rank": int, "*": object}),
            obj(line=int, record=_RECORD),
            obj(sample=int, record=_RECORD),
            Sent,
        )
    ),
    "runs replay": ("never", None),
    "mcp": ("never", None),
    "shell": ("never", None),
    "skill": obj(text=str),
    "runs pull": (
        "list",
        _either(
            obj(run=str, error=None, folder=str, files=list[str], bytes=int, offered=int, unreached=list[str]),
            obj(run=str, error=None, folder=str, files=int),
            _OF_RUN,
        ),
    ),
    "runs weights": obj(file=str, checkpoint=str, tensors=int, parameters=int),
    "runs forget": ("list", obj(run=str, hosts=list[str], error=_either(None, ERROR))),
    "runs gc": obj(
        runs=(
            "list",
            obj("error", run=str, ended=float | None, size=int | None, hosts=list[str], error=_either(None, ERROR)),
        ),
        sweeps=list[str],
        removed=bool,
    ),
    "runs orphans": obj(hosts=dict[str, list[_RECORD]], errors=("table", ERROR)),
    "lease add": ("list", obj(host=str, gpus=list[int] | None, until=float | None, note=str)),
    "lease release": dict[str, list[Lease]],
    "lease list": obj(hosts=list[HostLeases], **_ERRORS),
    "lease queue": obj(
        runs=(
            "list",
            obj(
                run=str,
                user=str,
                since=float,
                hosts=(
                    "list",
                    _either(
                        obj(
                            host=str,
                            gpus=list[int] | None,
                            count=int | None,
                            ahead=("list", obj(user=str, run=str, gpus=list[int] | None)),
                        ),
                        WaitingPart,
                    ),
                ),
            ),
        ),
        dropped=dict[str, str],
        **_ERRORS,
    ),
    "lease move": _also(Moved, run=str, to=str),
    "library list": (
        "list",
        obj(
            library=str,
            folder=str,
            url=str | None,
            problem=str | None,
            profiles=list[_RECORD],
            inventories=("list", obj(name=str, hosts=list[str], problem=str | None)),
        ),
    ),
    "library show": _either(obj(values=_VALUES), obj(text=str)),
    "library add": obj(library=str, synced=_either(None, Obj(_SYNCED))),
    "library remove": obj(library=str, profile=str | None),
    **dict.fromkeys(("library save", "library copy", "library rename", "library restore", "library edit"), _SAVED),
    "library diff": (
        "list",
        obj(
            titles=list[str],
            texts=list[str],
            changes=_either(None, ("list", obj(key=str, before=object, after=object))),
        ),
    ),
    "library history": list[Commit],
    "library sync": ("list", obj(library=str, **_SYNCED)),
    "library validate": ("list", obj(library=str, profiles=int, problems=list[str])),
}
"""Command, in its words → what it prints."""


def commands(group: Any = cli, before: str = "") -> Iterator[str]:
    """The commands, in their words."""
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, f"{before}{name} ")
        elif not each.hidden:
            yield before + name


class _Maker:
    """Makes schemas of types; those with a name are made once, beside the commands."""

    def __init__(self) -> None:
        self.defs: Json = {}

    def schema(self, hint: Hint) -> Json:
        if isinstance(hint, Obj):
            return self._object(hint.fields, [name for name in hint.fields if name not in hint.optional])
        if isinstance(hint, Lines):
            return {"$comment": "a line of several", **self.schema(hint.hint)}
        if isinstance(hint, tuple) and len(hint) == 2 and isinstance(hint[0], str):
            kind, inner = hint
            if kind == "either":
                return {"anyOf": [self.schema(one) for one in inner]}
            if kind == "never":
                return {"not": {}}
            return {"type": "array", "items": self.schema(inner)} if kind == "list" else self._table(inner)
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        origin: Any = get_origin(hint)
        inner = get_args(hint)
        if origin is Annotated:
            return self.schema(inner[0])
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, UnionType):
            return {"anyOf": [self.schema(one) for one in inner]}
        if origin is tuple and inner[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.schema(one) for one in inner]}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._table(inner[1])
        if isinstance(origin, type) and issubclass(origin, Sequence | Set):
            return {"type": "array", "items": self.schema(inner[0])}
        return self._named(hint)

    def _named(self, kind: Any) -> Json:
        if kind.__name__ not in self.defs:
            self.defs[kind.__name__] = {}
            hints = get_type_hints(kind)
            names = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else list(hints)
            required = getattr(kind, "__required_keys__", names)
            fields = {name: hints[name] for name in names}
            self.defs[kind.__name__] = self._object(fields, [name for name in names if name in required])
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _object(self, fields: Mapping[str, Hint], required: list[str]) -> Json:
        rest = {"additionalProperties": True} if "*" in fields else {}
        properties = {name: self.schema(hint) for name, hint in fields.items() if name != "*"}
        return {"type": "object", "properties": properties, "required": [one for one in required if one != "*"], **rest}

    def _table(self, inner: Hint) -> Json:
        return {"type": "object", "additionalProperties": self.schema(inner)}


_PLAIN: Mapping[Any, Json] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}


def page() -> str:
    """The whole file."""
    maker = _Maker()
    made = {name: maker.schema(hint) for name, hint in OUTPUTS.items()}
    about = (
        "What each command of disttui prints with --json; `error` is what any of them prints when it fails. "
        "Of commands that print several objects, one a line, the schema is that of a line. "
        "Fields may be added, so that unknown ones are to be ignored."
    )
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:disttui:json:1",
        "description": about,
    }
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(one)}" for name, one in sorted({**made, **maker.defs}.items())
    )
    return f'{json.dumps(head)[:-1]}, "$defs": {{\n{lines}\n}}}}\n'


def flaws(value: Any, schema: Json, defs: Json, at: str = "") -> list[str]:
    """Why a value does not match a schema, which may not leave a key unnamed either; empty: it does."""
    if "$ref" in schema:
        return flaws(value, defs[schema["$ref"].removeprefix("#/$defs/")], defs, at)
    if "not" in schema:
        return [f"{at}: nothing is expected"]
    if "anyOf" in schema:
        found = [flaws(value, one, defs, at) for one in schema["anyOf"]]
        return min(found, key=lambda each: (len(each), each)) if all(found) else []
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at}: {value!r} is not one of {schema['enum']}"]
    if "type" not in schema:
        return []
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
        "array": list,
        "object": dict,
    }
    kind = schema["type"]
    if not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind in ("integer", "number")):
        return [f"{at}: {value!r:.80} is not of type {kind}"]
    if kind == "array":
        inner = schema.get("prefixItems") or [schema["items"]] * len(value)
        wrong = [f"{at}: {len(value)} items"] if len(inner) != len(value) else []
        return wrong + [
            flaw
            for index, one in enumerate(value)
            for flaw in flaws(one, inner[min(index, len(inner) - 1)], defs, f"{at}[{index}]")
        ]
    if kind != "object":
        return []
    named, rest = schema.get("properties", {}), schema.get("additionalProperties", False)
    wrong = [f"{at}.{name}: missing" for name in schema.get("required", ()) if name not in value]
    for name, one in value.items():
        if name in named:
            wrong += flaws(one, named[name], defs, f"{at}.{name}")
        elif rest is False:
            wrong.append(f"{at}.{name}: not in the schema")
        elif rest is not True:
            wrong += flaws(one, rest, defs, f"{at}.{name}")
    return wrong


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
