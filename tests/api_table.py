"""Writes the functions and types of the public API into docs/api.md: `python -m tests.api_table`."""

from __future__ import annotations

import inspect
from pathlib import Path

import disttui as api

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
_HEAD = "## Functions"
_TASKS = {
    "Profiles": "load_profile read_profile script_profile import_profile export_profile save_exported",
    "Hosts": "probe top watch_hosts who lease release orphans",
    "Start": "run prepare plan_run start rerun newest_checkpoint start_sweep find_sweep",
    "Find": "known_runs find_run select_runs list_runs adopt refresh catch_up",
    "Follow and wait": "follow attach wait queue move",
    "Read": "logs replay diagnose compare pull fetch_weights export_weights send_metrics",
    "Stop and remove": "stop stop_runs forget forget_here old_runs remove",
    "Libraries": "list_library add_library sync_libraries check_libraries remove_library copy_profile read_for_edit "
    "save_profile restore_profile",
    "Tests of a profile": "try_notify try_rules",
}


def page() -> str:
    """The page with every public function below its task, and the names of the types."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n{_HEAD}")[0].rstrip("\n")
    functions = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    classes = [f"`{name}`" for name in api.__all__ if inspect.isclass(getattr(api, name))]
    intro = "Generated from the code (`python -m tests.api_table`). `help(disttui.run)` has the details."
    parts = [f"{text}\n\n{_HEAD}\n\n{intro}"]
    for task, words in _TASKS.items():
        names = [name for name in words.split() if name in functions]
        functions -= set(names)
        parts += [f"### {task}", "\n".join(map(_function, names))]
    if functions:
        raise ValueError(f"functions without a task: {sorted(functions)}")
    return "\n\n".join([*parts, "## Types", ", ".join(classes) + "."]) + "\n"


def _function(name: str) -> str:
    """Its name, its required parameters, … for others, its first sentence."""
    found = getattr(api, name)
    parameters = inspect.signature(found).parameters.values()
    needed = [
        f"{one.name}=…" if one.kind is one.KEYWORD_ONLY else one.name for one in parameters if one.default is one.empty
    ]
    shown = ", ".join(needed + ["…"] * (len(needed) < len(parameters)))
    return f"* `{name}({shown})`: {_first(found)}"


def _first(found: object) -> str:
    text = inspect.getdoc(found) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].split("; ")[0].rstrip(".") + "."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
