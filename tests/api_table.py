"""Writes the signatures of the public API into docs/api.md: `python -m tests.api_table`."""

from __future__ import annotations

import inspect
from pathlib import Path

import disttui as api

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
_HEAD = "## Signatures"


def page() -> str:
    """The page with a signature and the first sentence of the docstring for every public name."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n{_HEAD}")[0].rstrip("\n")
    functions = [name for name in api.__all__ if inspect.isfunction(getattr(api, name))]
    classes = [name for name in api.__all__ if inspect.isclass(getattr(api, name))]
    parts = [f"{text}\n\n{_HEAD}\n\nMade from the code (`python -m tests.api_table`).", *map(_function, functions)]
    return "\n\n".join([*parts, "### Types", "\n".join(map(_class, classes))]) + "\n"


def _function(name: str) -> str:
    found = getattr(api, name)
    signature = inspect.signature(found)
    parameters = [one.replace(default=_Default(one.default)) for one in signature.parameters.values()]
    bare = [one.replace(default=one.empty) if one.default.value is one.empty else one for one in parameters]
    words = str(signature.replace(parameters=bare)).replace("'", "")
    return f"    {name}{words}\n\n{_first(found)}"


class _Default:
    """A default value, written as it is if it is a plain one: others have no stable text."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value) if isinstance(self.value, str | int | float | tuple | None) else "…"


def _class(name: str) -> str:
    return f"* `{name}`: {_first(getattr(api, name))}"


def _first(found: object) -> str:
    text = inspect.getdoc(found) or ""
    return " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
