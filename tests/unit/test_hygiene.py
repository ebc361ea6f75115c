"""Rules of the tree that no other tool keeps."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
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
