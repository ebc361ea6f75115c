"""The tables of docs/formats.md that follow from runner/protocol: names and kinds of fields, as the types have them.

`python -m tests.formats_tables` writes them anew, the words beside them stay; tests/unit/test_formats.py fails where
they differ.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from disttui.runner.node.serve.channel import Sender, Server
from disttui.runner.protocol import checks, facts, requests
from disttui.runner.protocol.cause import Cause
from disttui.runner.protocol.events import Event, Held
from disttui.runner.protocol.files import Secrets, Spec
from disttui.runner.protocol.slurm import Batch

PAGE = Path(__file__).parent.parent / "docs" / "formats.md"
_NAMED = {Cause: "cause", Held: "held", Spec: "spec", Secrets: "secrets", Batch: "batch"}
"""Types that the page describes at one place."""
_PLAIN: Mapping[Any, str] = {int: "int", float: "number", str: "text", bool: "bool", object: "any"}


def events() -> dict[str, str]:
    """Kind of event → its fields."""
    kinds = {get_args(get_type_hints(kind)["e"])[0]: kind for kind in get_args(Event)}
    return {name: fields(kind, without=("t", "e")) for name, kind in kinds.items()}


def operations() -> dict[str, str]:
    """Operation of the node program → its arguments, as its handler takes them."""
    server = Server("", None, Sender(io.BytesIO()))
    names = {"requests": requests, "checks": checks, "Facts": facts.Facts}
    handlers = {**server._operations, **server._streams}
    return {op: fields(get_type_hints(handler, names)["request"]) for op, handler in handlers.items()}


def fields(kind: Any, without: tuple[str, ...] = ()) -> str:
    """`name: int, other?: text`: required fields first, then those that may be absent."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in without}
    order = sorted(hints, key=lambda name: name not in kind.__required_keys__)
    return ", ".join(
        f"{name}{'' if name in kind.__required_keys__ else '?'}: {words(hints[name])}" for name in order
    )  # fmt: skip


def words(hint: Any) -> str:
    """A type in the page's words."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint in _NAMED:
        return _NAMED[hint]
    if origin is Literal:
        return "/".join(f'"{one}"' for one in inner)
    if origin is list:
        return f"[{words(inner[0])}]"
    if origin in (dict, Mapping):
        return f"{{{words(inner[0])}: {words(inner[1])}}}"
    if origin in (Union, UnionType):
        return " or ".join("null" if one is type(None) else words(one) for one in inner)
    return f"{{{fields(hint)}}}"


def page() -> str:
    """The whole page with these tables."""
    text = _with_fields(PAGE.read_text(encoding="utf-8"), "### events.jsonl", events())
    return _with_fields(text, "## Frames", operations())


def _with_fields(text: str, heading: str, rows: Mapping[str, str]) -> str:
    """Put fields into the second column of the first table below a heading. Raises ValueError for other rows."""
    before, after = text.split(f"\n{heading}\n", 1)
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table, heading
    head, rule, *lines = table[0].splitlines()
    written: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"), maxsplit=2))
        written[name.strip("`")] = [name, rest]
    if written.keys() != rows.keys():
        raise ValueError(f"{heading}: the table lists other rows: {sorted(written.keys() ^ rows.keys())}")
    made = [f"| {name} | {f'`{rows[key]}`' if rows[key] else ''} | {rest} |" for key, (name, rest) in written.items()]
    body = "\n".join([head, rule, *made]) + "\n"
    return f"{before}\n{heading}\n{after[: table.start()]}{body}{after[table.end() :]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
