"""Data → YAML as a person would write it: short values on one line, quotes where they matter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

ORDER = (
    "disttui", "name", "description", "hosts", "num_processes", "python", "activate", "env", "job", "launch",
    "parallel", "precision", "metrics", "on_end",
)  # fmt: skip
"""The profile's keys as people write them."""
TALL = ("hosts", "job")
"""Keys whose value has a line for each of its items, however short it is."""
_FLOW_WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z_/~.+-][\w/~.+=@%^-]*(?: [\w/~.+=@%^-]+)*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~", "-", "."}
_ENDLESS = 1 << 30


def render(data: Mapping[str, Any]) -> str:
    """A new file for the profile `data`, with its keys in the usual order."""
    order = {key: at for at, key in enumerate(ORDER)}
    return "".join(entry(key, data[key]) for key in sorted(data, key=lambda key: order.get(key, len(order)))) or "{}\n"


def entry(key: str, value: Any) -> str:
    """The lines of one key of a mapping, without indentation."""
    return _written(yaml.MappingNode(_tag("map"), [(_node(key), _node(value, tall=key in TALL))], flow_style=False))


def item(value: Any) -> str:
    """The lines of one item of a list, without indentation."""
    return _written(yaml.SequenceNode(_tag("seq"), [_node(value)], flow_style=False), indent=False)


def inline(value: Any) -> str:
    """A value on one line, also for inside brackets."""
    return _written(yaml.SequenceNode(_tag("seq"), [_node(value, flow=True)], flow_style=True))[1:-2]


def is_short(key: str | None, value: Any) -> bool:
    """Whether a value stands on one line; `key` is None for an item of a list."""
    return not isinstance(value, Mapping | list | tuple) or (key not in TALL and len(str(value)) <= _FLOW_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Writes `  - ` below a key, where PyYAML would put the dash under the key itself."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _written(node: yaml.Node, *, indent: bool = True) -> str:
    dumper = _Dumper if indent else yaml.SafeDumper
    return str(yaml.serialize(node, Dumper=dumper, allow_unicode=True, width=_ENDLESS))


def _node(value: Any, *, tall: bool = False, flow: bool = False) -> yaml.Node:
    """A value as PyYAML writes it: on one line where it is short, with `flow` in any case and with `tall` in none."""
    one_line = flow or (not tall and len(str(value)) <= _FLOW_WIDTH)
    if isinstance(value, Mapping):
        pairs = [(_node(key), _node(inner, flow=one_line)) for key, inner in value.items()]
        return yaml.MappingNode(_tag("map"), pairs, flow_style=one_line)
    if isinstance(value, list | tuple):
        return yaml.SequenceNode(_tag("seq"), [_node(each, flow=one_line) for each in value], flow_style=one_line)
    if value is None:
        return yaml.ScalarNode(_tag("null"), "null")
    if isinstance(value, bool):
        return yaml.ScalarNode(_tag("bool"), str(value).lower())
    if isinstance(value, int):
        return yaml.ScalarNode(_tag("int"), str(value))
    text = str(value)
    quoted = not _PLAIN.fullmatch(text) or text.lower() in _WORDS
    return yaml.ScalarNode(_tag("str"), text, style='"' if quoted else None)


def _tag(kind: str) -> str:
    return f"tag:yaml.org,2002:{kind}"
