"""docs/profile.md from the schema: every key with the words of its own check, its default and its docstring.

`python -m tests.profile_table` writes it anew; tests/unit/test_profile_table.py fails where it differs.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from disttui.runner.profile import Profile, ProfileErrors, parse
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
    "DISTTUI_RESUME": "`1` from the second attempt on, and from the first of `disttui rerun --resume`: resume from the "
    "newest checkpoint. Not set otherwise.",
    "DISTTUI_RESUME_FROM": "Of `disttui rerun --resume`: the folder with the checkpoints of the run before, to begin "
    "with where `DISTTUI_CHECKPOINTS` holds none yet. Not set otherwise.",
    "DISTTUI_CHECKPOINTS": "The folder for checkpoints, `<run_dir>/<run>/checkpoints`, the same for all attempts; one "
    "for each host where the hosts do not share `launch.run_dir`.",
    "DISTTUI_METRICS": 'The rank\'s own file for metrics: one JSON object a line, such as `{"step": 1, "loss": 2.5}`.',
    "DISTTUI_DIR": "The attempt's folder, where the ranks' logs are.",
    "DISTTUI_TAG": "`run/node/attempt`, by which `stop` and `orphans` find every process of the run.",
    "DISTTUI_INSTRUMENT": "`0` where `launch.instrument` is false, else `1`.",
}
OF_DISTTUI = {
    "DISTTUI_SSH_CONFIG": "A file to use as ssh's `-F` does; `--ssh-config` goes over it.",
    "DISTTUI_PROFILES": "Further folders of profiles, with `:` between them: the team's, used after a yes.",
    "DISTTUI_LEASES": "On a host: the folder of its leases in place of /var/tmp, the same for all its users.",
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
    *("DISTTUI_EARLY", "DISTTUI_GATE", "DISTTUI_PRELOAD"),
}
"""Variables between disttui's own processes."""

_NAMES = {("hosts", "host"), ("hosts", "name"), ("hosts", "user"), ("hosts", "address")}
"""Keys whose check would speak of the `?` alone."""

_HEAD = """\
# Profile: all keys and variables

Made from the schema (`python -m tests.profile_table`). `disttui profile validate FILE` names every error with its line,
and what the profile has run where; `--set launch.restarts=2` overrides a key, `--set job.args.lr=1e-3` an option of the
job. [2node.yaml](../profiles/2node.yaml) is an example with comments; [library.md](library.md) has `extends` and
variables. Times are in seconds.

disttui logs in to hosts by itself: your ssh configuration, keys, agent, passwords, one-time codes. For Kerberos, FIDO
and PKCS#11 keys, or a ControlMaster that is open already, set `transport: ssh`, for all hosts, for one, or in your
config: the ssh program logs in then, and its questions come to you as usual ([security.md](security.md)).
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for section, model in SECTIONS.items():
        title = f"## `{section}`" if section else "## Top level"
        lines += [title, "", *_intro(section), "| key | value | default | meaning |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in _rows(section, model)]
        lines.append("")
    lines += ["## Variables that every rank gets", "", *_variables(OF_RANKS), ""]
    lines += [
        "Besides these, torchrun's own, and those that `disttui profile plan` shows with their reasons",
        "([formats.md](formats.md#environment-of-a-rank)).", "", "## Variables of disttui itself", "",
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
    if section == "data":
        return ["A list of mappings with these keys, such as `{to: ~/data/tokens.bin, from: tokens.bin}`:", ""]
    if section != "hosts":
        return []
    return [
        "A list. Each is one word, such as `node1`, `alice@box2:2222` or `local`, or a mapping with these keys:",
        "",
    ]


def _rows(section: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    seen = docstrings(model)
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield f"`{key}`", _expected(section, key), _default(section, key, field.default, seen[name]), seen[name]


def _expected(section: str, name: str) -> str:
    """What its check says of a value that is none."""
    try:
        parse(_with(section, name, "nonsense" if (section, name) in _NAMES else "?"), "x")
    except ProfileErrors as errors:
        seen = [one.expected for one in errors.problems if one.expected.startswith("expected ")]
        return seen[0].removeprefix("expected ") if seen else "text"
    return "text"


def _default(section: str, name: str, value: Any, seen: str) -> str:
    if seen.startswith("Its own, in place of") or value in ("", ()) or value == {}:
        return ""
    if (section, name) == ("job.sync", "max"):
        return f"`{value / 10**6:.0f}MB`"
    if value is PydanticUndefined:
        return "" if name == "name" else "required"
    if isinstance(value, BaseModel):
        return ""
    if value is None:
        return next((f"`{word}`" for word in ("auto", "none") if _means_nothing(section, name, word)), "")
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{'-'.join(map(str, value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


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
    return ["| variable | meaning |", "|---|---|", *(f"| `{name}` | {_cell(text)} |" for name, text in known.items())]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
