"""Rules of the tree that no other tool keeps."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import ran

ROOT = Path(__file__).parents[2]
NODE = sorted((ROOT / "runner" / "node").rglob("*.py"))
PROTOCOL = sorted((ROOT / "runner" / "protocol").rglob("*.py"))
TRAIN = sorted((ROOT / "runner" / "train").rglob("*.py"))

# In pieces, so that this file does not hold them.
_THIS_MACHINE = re.compile(r"(?<![\w~}.-])/wor" r"k/|/root/\.py" r"env|/opt/(?:pyp" r"i|whee" r"ls)")
_REGISTRIES = re.compile(
    r"pyp" r"i\.org|pythonhost" r"ed\.org|download\.pyt" r"orch\.org|anacon" r"da\.org|npm" r"js\.(?:org|com)"
)


def test_help_imports_nothing_slow() -> None:
    """`disttui --help` answers at once: it imports no screen, no SSH, no schema and no torch."""
    code = (
        "import atexit, sys\nfrom disttui.runner.cli import main\nsys.argv = ['disttui', '--help']\n"
        "names = {'textual', 'paramiko', 'torch', 'pydantic'}\n"
        "atexit.register(lambda: print('loaded:', *sorted(names & set(sys.modules))))\nmain()\n"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import, wherever it stands; a relative one as its dots and name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def _foreign(path: Path, allowed: set[str]) -> list[str]:
    """Imports of neither the standard library, nor what is allowed, nor the room itself (runner/node, runner/train).

    `allowed` has top-level modules, and with dots packages that are shipped beside this one.
    """
    known = sys.stdlib_module_names | allowed
    depth = len(path.relative_to(ROOT / "runner").parts) - 1
    beside = tuple("." * (depth + 1) + f"{name.rpartition('.')[2]}." for name in allowed if "." in name)
    return [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for line, module in _imports(path)
        if (len(module) - len(module.lstrip(".")) > depth and not f"{module}.".startswith(beside))
        or (not module.startswith(".") and module.split(".")[0] not in known)
    ]


@pytest.mark.parametrize("path", NODE, ids=lambda path: path.name)
def test_node_needs_only_the_standard_library(path: Path) -> None:
    """Hosts have nothing else. psutil is welcome in one file, and two run in the job's interpreter, as torchrun."""
    torch = {"torch"}
    allowed = {"system.py": {"psutil"}, "by_torchrun.py": torch, "forked.py": torch, "loader.py": {"_disttui"}}
    assert _foreign(path, allowed.get(path.name, set()) | {"disttui.runner.protocol"}) == []


@pytest.mark.parametrize("path", PROTOCOL, ids=lambda path: path.name)
def test_protocol_stands_on_nothing(path: Path) -> None:
    """It is shipped to hosts beside the node program, and imported by everything."""
    assert _foreign(path, set()) == []


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.name)
def test_train_needs_only_torch(path: Path) -> None:
    """The built-in job runs wherever torch does."""
    assert _foreign(path, {"torch"}) == []


def _tree() -> Iterator[Path]:
    # In a worktree .git is a file, which is git's and no part of the tree.
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    for name in (".ci", ".github", "docs", "profiles", "runner", "tests", "tui"):
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


@pytest.mark.parametrize(
    ("needle", "what"),
    [(_THIS_MACHINE, "a path of the machine it was written on"), (_REGISTRIES, "a package registry")],
    ids=["paths", "registries"],
)
def test_the_tree_names_no(needle: re.Pattern[str], what: str) -> None:
    """The project installs and runs anywhere: it names neither its makers' machine nor one registry."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in _tree()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if needle.search(line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


def test_every_profile_is_in_the_readme() -> None:
    """A profile that nobody can find is of no use."""
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")
    text = readme.read_text(encoding="utf-8")
    profiles = sorted(path.name for path in (ROOT / "profiles").glob("*.yaml"))
    assert [name for name in profiles if name not in text] == []


def test_every_screen_that_is_opened_by_name_exists() -> None:
    from disttui.tui.router import SCREENS, screen_class

    assert all(callable(screen_class(kind)) for kind in SCREENS)


def test_the_api_prints_nothing_and_asks_nothing_at_a_terminal() -> None:
    """Values, updates and errors come out of it; both front ends and scripts say them in their own way."""
    found = []
    for path in sorted((ROOT / "runner" / "api").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if word in ("print", "input", "echo", "stdin", "stdout", "stderr", "argv", "getpass", "isatty"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {word}")  # type: ignore[attr-defined]
    assert found == []


def test_texts_are_in_plain_words() -> None:
    """Words that a reader with English as second language stumbles on, or that leave open who acts."""
    riddles = re.compile(r"\b(mend(s|ed|ing)?|told|whoever|no sense|to be had|tells of)\b", re.IGNORECASE)
    texts = [path for room in ("runner", "tui") for path in (ROOT / room).rglob("*.py")]
    texts += [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(texts)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if riddles.search(line)
    ]
    assert found == []


_CLOCKS = {
    f"{name}{unit}"
    for name in ("monotonic", "time", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
}
_TIMED = {
    "tests/faults/test_links.py::test_two_hosts_lose_each_other_for_20_s": "the length of the cut is the fault",
    "tests/faults/test_links.py::test_a_cut_of_8_s_in_the_first_second_of_run": "the length of the cut is the fault",
    "tests/faults/test_viewers.py::test_the_viewers_links_are_cut_silently": "the length of the cut is the fault",
    "tests/unit/test_harvest.py::test_a_pattern_is_not_blamed_for_a_host_that_has_no_time": (
        "the process has to be stopped for longer than the 0.2 s that its pattern may take"
    ),
}
"""Tests that sleep, and why they have to."""


def _asks(node: ast.AST, names: set[str]) -> bool:
    """Whether this calls one of these functions of the module `time`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name)):
            return name in names
    return False


def _bound(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield every name that is given a value, with that; a list is given what is appended to it."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from (
                    (name.id, value) for name, value in zip(targets, values, strict=False) if isinstance(name, ast.Name)
                )
            case ast.Assign(targets=targets, value=value):
                yield from ((name.id, value) for name in targets if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
                yield name, value


def _decided_by_clock(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    """The lines that compare how long something took, two readings of a clock, or sleep in the body of a test."""
    bound = list(_bound(function))
    readings = {name for name, value in bound if _asks(value, _CLOCKS)}
    seconds: set[str] = set()

    def is_reading(node: ast.AST) -> bool:
        return _asks(node, _CLOCKS) or (isinstance(node, ast.Name) and node.id in readings)

    def has_seconds(node: ast.AST) -> bool:
        for part in ast.walk(node):
            match part:
                case ast.BinOp(left=left, op=ast.Sub(), right=right) if is_reading(left) and is_reading(right):
                    return True
                case ast.Name(id=name) if name in seconds:
                    return True
        return False

    while more := {name for name, value in bound if has_seconds(value)} - seconds:
        seconds |= more
    asserted = [part for node in ast.walk(function) if isinstance(node, ast.Assert) for part in ast.walk(node.test)]
    lines = [part.lineno for part in asserted if isinstance(part, ast.Compare) and has_seconds(part)]
    if function.name.startswith("test_"):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        lines += [call.lineno for call in calls if _asks(call, {"sleep"})]
    return lines


def _functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_names_of_tests_are_short() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    names = [name for text in texts for name in re.findall(r"def (test_\w+)\(", text)]
    assert names and [name for name in names if len(name) >= 60] == []


def test_no_clock_decides() -> None:
    """A test waits for what happens (tests/unit/waiting.py) and asserts that: seconds depend on what else runs here."""
    found: dict[str, list[int]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[1] not in ("bench", "data", "soak"):
            source = path.read_text(encoding="utf-8")
            for function in _functions(source) if "time." in source else ():
                text = "\n".join(source.split("\n")[function.lineno - 1 : function.end_lineno])
                if "time." in text and (lines := _decided_by_clock(function)):
                    found[f"{place.as_posix()}::{function.name}"] = lines
    assert {name: lines for name, lines in found.items() if name not in _TIMED} == {}
    assert _TIMED.keys() - found.keys() == set(), "these need no exception any more"


@pytest.mark.parametrize(
    ("lines", "decides"),
    [
        ("begun = time.monotonic(); go(); assert time.monotonic() - begun < 5", True),
        ("begun = time.time(); go(); took = time.time() - begun; rate = 1 / took; assert done and rate > 5", True),
        ("begun = time.time(); spent.append(time.time() - begun); assert min(spent) < 5", True),
        ("begun = time.time(); go(); print(time.time() - begun)", False),
        ("time.sleep(0.5)", True),
        ("def slow(): time.sleep(0.5)", True),
        ("assert abs(record['t'] - time.time()) < 5", False),
        ("before = time.time(); go(); assert before <= record['t'] <= time.time()", False),
    ],
)
def test_a_clock_that_decides_is_seen(lines: str, decides: bool) -> None:
    [function, *_] = _functions("def test_it():\n " + lines.replace("; ", "\n "))
    assert bool(_decided_by_clock(function)) is decides


EDGES = {
    "runner/untrusted/records.py": "from bytes to parsed JSON, and to bounded values",
    "runner/hosts/answers.py": "answers to requests",
    "runner/hosts/facts.py": "answers of a probe",
    "runner/hosts/link.py": "frames of a host",
    "runner/runs/registry.py": "run.json and seen.json",
    "runner/runs/summary.py": "summaries of runs",
    "runner/train/index.py": "the index of a checkpoint",
    "runner/profile/load.py": "profiles as YAML has them",
    "runner/profile/save.py": "profiles as YAML has them",
    "runner/profile/schema.py": "profiles as YAML has them",
    "runner/cli/mcp.py": "requests of a client",
    "runner/transport/guarded.py": "paramiko's attributes",
    "runner/node/observe/reports.py": "what scripts write into the files of their run",
    "runner/node/gang/leader.py": "messages of other hosts",
    "runner/node/gang/link.py": "messages of other hosts",
    "runner/node/gang/messages.py": "messages of other hosts",
    "runner/node/notify.py": "its own journal, and what receivers are sent",
    "runner/node/child.py": "whatever tasks that run side by side return",
    "runner/train/checkpoint.py": "torch's states",
    "runner/train/keeper.py": "torch's states",
    "runner/train/options.py": "argparse's namespace",
    "runner/train/peers.py": "what the ranks of other hosts have measured",
    "runner/train/smoke.py": "what a rank measures, on its way into JSON",
    "runner/train/state.py": "torch's states",
    "runner/user/config.py": "the user's configuration",
    "tui/wizard/draft.py": "profiles that are being written",
    "tui/wizard/job.py": "profiles that are being written",
}
"""Module → what comes in there."""


def _untyped(path: Path) -> Iterator[int]:
    """Yield the lines of annotations such as `dict[str, Any]` and `Mapping[str, Any]`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            name = ast.unparse(node.value).rpartition(".")[2]
            if name in ("dict", "Dict", "Mapping", "MutableMapping") and ast.unparse(node.slice) == "(str, Any)":
                yield node.lineno


def test_untyped_objects_stay_at_the_edges() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(_untyped(path))
        for folder in ("runner", "tui")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert not [name for name in EDGES if not found.get(name)], "an edge that has none any more: strike it off the list"
    inside = {name: lines for name, lines in found.items() if lines and name not in EDGES}
    listed = "\n".join(f"{name}: {', '.join(map(str, lines))}" for name, lines in inside.items())
    assert not inside, f"untyped objects outside of the edges:\n{listed}"
