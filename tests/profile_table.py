"""docs/profile.md from the schema: every key with the words of its own check, its default and its docstring.

`python -m tests.profile_table` writes it anew; tests/unit/test_pages.py fails where it differs.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
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
    Slurm,
    Sync,
    Watch,
    WatchGoal,
    WatchLog,
    WatchNonFinite,
    WatchPlateau,
    WatchSlow,
    WatchSpike,
    WatchStall,
)

PAGE = Path(__file__).parent.parent / "docs" / "profile.md"
SECTIONS: Mapping[str, type[BaseModel]] = {
    "": Profile, "hosts": Host, "job": Job, "job.sync": Sync, "job.environment": Environment, "data": Data,
    "container": Container,
    "launch": Launch, "slurm": Slurm, "parallel": Parallel,
    "metrics": Metrics, "on_end": OnEnd, "watch": Watch, "watch.nonfinite": WatchNonFinite,
    "watch.spike": WatchSpike, "watch.slow": WatchSlow, "watch.goal": WatchGoal, "watch.plateau": WatchPlateau,
    "watch.log": WatchLog, "watch.stall": WatchStall,
    "notify": Notify,
}  # fmt: skip
OF_RANKS = {
    "DISTTUI_RUN": "The run's id.",
    "DISTTUI_NODE": "The host's node rank.",
    "DISTTUI_ATTEMPT": "1, 2, …",
    "DISTTUI_RESUME": "`1` if the script has to resume from the newest checkpoint: from the second attempt on, and "
    "from the first of `disttui rerun --resume`; otherwise unset.",
    "DISTTUI_RESUME_FROM": "The earlier run's checkpoints after `disttui rerun --resume`, to start from while "
    "`DISTTUI_CHECKPOINTS` is empty.",
    "DISTTUI_CHECKPOINTS": "`<run_dir>/<run>/checkpoints`, one per host unless hosts share `launch.run_dir`.",
    "DISTTUI_METRICS": 'The rank\'s file for metrics, one JSON object per line: `{"step": 1, "loss": 2.5}`.',
    "DISTTUI_DIR": "The attempt's folder, with the ranks' logs.",
    "DISTTUI_TAG": "`run/node/attempt`, by which `stop` and `orphans` find the run's processes.",
    "DISTTUI_INSTRUMENT": "`0` if `launch.instrument` is false, else `1`.",
}
OF_DISTTUI = {
    "DISTTUI_SSH_CONFIG": "A file as for ssh's `-F`; `--ssh-config` overrides it.",
    "DISTTUI_PROFILES": "More folders of profiles, separated by `:`, used after you confirm.",
    "DISTTUI_LEASES": "On a host: the folder of leases instead of /var/tmp, the same for all users.",
}
INSIDE = {
    *(
        "DISTTUI_OVERLAY",
        "DISTTUI_PARENT",
        "DISTTUI_COMPLETE",
        "DISTTUI_FIRST_RANK",
        "DISTTUI_AGENT",
        "DISTTUI_WATCHED",
    ),
    *("DISTTUI_EARLY", "DISTTUI_EXEC", "DISTTUI_GATE", "DISTTUI_PRELOAD"),
}
"""Variables between disttui's own processes."""

_NAMES = {("hosts", "host"), ("hosts", "name"), ("hosts", "user"), ("hosts", "address")}
"""Keys whose check would speak of the `?` alone."""

_OWN = "Its own, in place of"
"""How the docstrings of a host's keys begin that override others."""

_HEAD = """\
# Profile: all keys and variables

Generated from the schema (`python -m tests.profile_table`). `|` separates accepted values, the default first. Times are
in seconds. Relative local paths start at the profile's file.

`disttui profile validate FILE` checks a profile; `--set launch.restarts=2` overrides a key, `--set job.args.lr=1e-3` an
argument. Example: [2node.yaml](../profiles/2node.yaml). `extends` and variables:
[library.md](library.md#profiles-made-of-several-files).
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for section, model in SECTIONS.items():
        rows = [f"* `{prefix}{key}{shown}`{note}: {seen}" for prefix, key, shown, note, seen in _rows(section, model)]
        if not section.startswith("watch."):
            lines += [f"## `{section}`" if section else "## Top level", ""]
            lines += _intro(section)
        else:
            del lines[-1]
        own = [row.split("`")[1].partition(":")[0] for row in rows if _OWN in row]
        lines += [row for row in rows if _OWN not in row]
        lines += [f"* {', '.join(f'`{key}`' for key in own)}: Override the profile's or job's."] if own else []
        lines.append("")
    lines += ["## Variables that every rank gets", "", *_variables(OF_RANKS), ""]
    lines += [
        "Also torchrun's variables and others that `disttui profile plan` shows.",
        "", "## Variables of disttui itself", "",
    ]  # fmt: skip
    lines += _variables(OF_DISTTUI)
    return "\n".join(lines) + "\n"


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string under each of a model's fields."""
    (body,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    base = model.__base__
    found = docstrings(base) if base and issubclass(base, BaseModel) and base is not BaseModel else {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            found[one.target.id] = " ".join(ast.literal_eval(after.value).split())
    return found


def _intro(section: str) -> list[str]:
    texts = {
        "hosts": "A list of words (`node1`, `alice@box2:2222`, `local`) or mappings:",
        "data": "A list of mappings, such as `{to: ~/data/tokens.bin, from: tokens.bin}`:",
        "watch": "Each rule is an action (`stall: restart`) or a mapping (`stall: {do: stop, seconds: 90}`); `metric` "
        "of spike, goal and plateau is `loss` by default. Actions: " + docstrings(WatchSpike)["do"],
    }
    return [texts[section], ""] if section in texts else []


def _rows(section: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str, str, str]]:
    """Each key with the section before it if the page joins sections, its default, a note, its docstring."""
    seen = docstrings(model)
    prefix = f"{section.partition('.')[2]}." if section.startswith("watch.") else ""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if prefix and key in ("do", "metric"):
            continue  # in the introduction
        default = _default(section, key, field.default, seen[name])
        expected = _expected(section, key)
        values = [] if section == "watch" else _values(expected)
        shown = "|".join([default, *(word for word in values if word != default)] if default else values)
        note = f" ({expected})" if expected.startswith(("minutes", "a size")) else ""
        if default == "required":
            shown, note = "|".join(values), " (required)"
        yield prefix, key, f": {shown}" if shown else "", note, seen[name]


def _values(expected: str) -> list[str]:
    """`a or b or c`, the words of a check, as a list; none if it names a kind of value instead."""
    words = expected.split(" or ")
    return words if len(words) > 1 and all(re.fullmatch(r"[a-z0-9-]+", word) for word in words) else []


def _expected(section: str, name: str) -> str:
    """What its check says of a value that is none."""
    try:
        parse(_with(section, name, "nonsense" if (section, name) in _NAMES else "?"), "x")
    except ProfileErrors as errors:
        seen = [one.expected for one in errors.problems if one.expected.startswith("expected ")]
        return seen[0].removeprefix("expected ") if seen else "text"
    return "text"


def _default(section: str, name: str, value: Any, seen: str) -> str:
    if seen.startswith(_OWN) or value in ("", ()) or value == {}:
        return ""
    if (section, name) == ("job.sync", "max"):
        return f"{value / 10**6:.0f}MB"
    if value is PydanticUndefined:
        return "" if name == "name" else "required"
    if isinstance(value, BaseModel):
        return ""
    if value is None:
        return next((word for word in ("auto", "none") if _means_nothing(section, name, word)), "")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def _means_nothing(section: str, name: str, word: str) -> bool:
    try:
        profile = parse(_with(section, name, word), "x")
    except ProfileErrors:
        return False
    if section.startswith(("job.", "data")):
        return False
    part: Any = profile.hosts[0] if section == "hosts" else getattr(profile, section) if section else profile
    return getattr(part, name) is None


def _with(section: str, name: str, value: str) -> str:
    """A profile in which one key has this value."""
    data: dict[str, Any] = {"disttui": 1, "hosts": [{"host": "node1"}], "job": {"script": "x"}}
    if section == "hosts":
        data["hosts"] = [{"host": "node1", name: value}]
    elif section == "container":
        data["container"] = {"image": "x", "runtime": "podman", name: value}
    elif section == "data":
        data["data"] = [{"to": "~/x", "from": "x", name: value}]
    elif section in ("job.sync", "job.environment"):
        data["job"][section.partition(".")[2]] = {name: value}
    elif section == "job" and name in ("builtin", "module", "command"):
        data["job"] = {name: value}
    elif section.startswith("watch."):
        rule = section[len("watch.") :]
        needed: dict[str, dict[str, Any]] = {"log": {"pattern": "x"}, "goal": {} if name == "above" else {"below": 1}}
        data["watch"] = {rule: {**needed.get(rule, {}), name: value}}
    elif section:
        data["num_processes"] = 1
        data[section] = {**data.get(section, {}), name: value}
    else:
        data[name] = value
    return json.dumps(data)


def _variables(known: Mapping[str, str]) -> list[str]:
    return [f"* `{name}`: {text}" for name, text in known.items()]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
