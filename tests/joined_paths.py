"""A plugin of mypy: on the viewing side, text that is not written in the code becomes a path by `inside` alone.

Text of a host, of a run's files or of a profile that is joined to a folder by `/` may lead anywhere. Types tell such
joins from divisions, so this is a rule of the type checker: it knows every use, new ones too.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.errorcodes import ErrorCode
from mypy.plugin import FunctionContext, MethodContext, Plugin
from mypy.types import Instance, ProperType, Type, get_proper_type

UNSAFE = ErrorCode("unsafe-path", "Text that others wrote becomes a path", "General")
ROOMS = tuple(f"/{room}" for room in (
    *("runner/hosts/answers", "runner/hosts/link", "runner/hosts/load", "runner/hosts/survey"),
    *("runner/untrusted/records", "runner/runs/", "runner/render/", "runner/diagnose/", "runner/api/"),
    *("runner/cli/", "tui/"),
))  # fmt: skip
"""Whatever sees what hosts say."""
METHODS = frozenset({"__truediv__", "__rtruediv__", "joinpath", "with_name", "with_stem", "with_suffix"})
FUNCTIONS = frozenset({"posixpath.join"})


class JoinedPaths(Plugin):
    """Reports joins of paths with text that is no literal."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Look at joins."""
        owner, _, name = fullname.rpartition(".")
        return _check if owner in ("pathlib.Path", "pathlib.PurePath") and name in METHODS else None

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """Look at joins of text."""
        return _check if fullname in FUNCTIONS else None


def _check(context: MethodContext | FunctionContext) -> Type:
    where = f"/{context.api.path}"
    seen = any(room in where for room in ROOMS) and "/tests/" not in where
    if seen and any(_is_text(get_proper_type(kind)) for kinds in context.arg_types for kind in kinds):
        context.api.fail("Text becomes a path: make it with disttui.runner.paths.inside", context.context, code=UNSAFE)
    return context.default_return_type


def _is_text(kind: ProperType) -> bool:
    return isinstance(kind, Instance) and kind.type.fullname == "builtins.str" and kind.last_known_value is None


def plugin(version: str) -> type[Plugin]:
    """What mypy calls."""
    return JoinedPaths
