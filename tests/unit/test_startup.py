"""What changes the process, or reaches inside Textual, stands in one module per front end."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import textual

from disttui import tui
from tests.command import ran

ROOT = Path(__file__).parents[2]
STARTUP = ("runner/cli/startup.py", "tui/startup.py")
PROGRAMS = ("runner/node/", "runner/train/")
"""Processes of their own, on the hosts."""
CHANGES = re.compile(
    r"\bgc\.(?:freeze|unfreeze|collect|disable|enable|set_threshold)\(|setswitchinterval"
    r"|sys\.modules\[.*\] =|del sys\.modules|sys\.path\b|sys\.std\w+ ="
    r"|os\.environ(?:\.setdefault|\.pop|\.update|\[[^]]*\] =)|os\.putenv|setrecursionlimit|settrace"
    r"|class \w+\(ThreadPoolExecutor|Thread\(target=\w*(?:import|ready|warm)"
)
QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
BASES = ("app.py", "dom.py", "message_pump.py", "screen.py", "widget.py", "widgets/_input.py")
"""Files of Textual whose classes ours are made from."""


def test_nothing_but_the_startup_modules_changes_the_process() -> None:
    strays = [
        f"{name}:{number}: {line.strip()}"
        for name, text in _sources("runner", "tui")
        for number, line in enumerate(text.splitlines(), 1)
        if CHANGES.search(QUOTED.sub("''", line))
    ]
    assert strays == []


def test_app_classes_override_no_private_textual_method() -> None:
    """An update of Textual would break it in silence."""
    strays = []
    for found in pkgutil.walk_packages(tui.__path__, "disttui.tui."):
        module = importlib.import_module(found.name)
        for kind, ours in vars(module).items():
            if not inspect.isclass(ours) or ours.__module__ != found.name or found.name == "disttui.tui.startup":
                continue
            private = {
                method for method, what in vars(ours).items() if _is_private(method) and inspect.isfunction(what)
            }
            theirs = [base for base in ours.__mro__[1:] if base.__module__.split(".")[0] == "textual"]
            strays += [f"{found.name}:{kind}.{each}" for base in theirs for each in private & set(vars(base))]
    assert strays == []


def test_no_file_of_the_app_uses_a_private_attribute_of_textual() -> None:
    folder = Path(textual.__file__).parent
    theirs = {name for base in BASES for name in _attributes(ast.parse((folder / base).read_text()), ast.Store)}
    strays = []
    for name, text in _sources("tui"):
        tree = ast.parse(text)
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        ours = defined | set(_attributes(tree, ast.Store)) | set(re.findall(r"^    (_\w+)\b.*=", text, re.MULTILINE))
        strays += [f"{name}: {each}" for each in _attributes(tree, ast.Load) if each in theirs - ours]
    assert strays == []


def test_a_command_never_imports_invoke() -> None:
    """It doubles the time that paramiko takes to be imported."""
    code = (
        "import sys\nfrom disttui.runner.cli import startup\nstartup.begin()\nimport disttui.runner.transport.ssh\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'invoke' and sys.modules[name]])\n"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def _sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name not in STARTUP and not name.startswith(PROGRAMS):
                yield name, path.read_text(encoding="utf-8")


def _attributes(tree: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    """The private names after a dot, but for those of `os`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, context):
            continue
        if _is_private(node.attr) and ast.unparse(node.value) != "os":
            yield node.attr


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_command_imports_no_other_command_and_no_run_modules() -> None:
    code = (
        "import sys\nfrom disttui.runner.cli.app import cli\n"
        "cli.commands['probe']\nimport disttui.runner.api.probing\n"
        "print(*(name for name in sys.modules if name.startswith(('disttui.runner.cli.', 'disttui.runner.runs'))))"
    )
    answer = ran([sys.executable, "-c", code], check=True).stdout
    assert set(answer.split()) == {"disttui.runner.cli.app", "disttui.runner.cli.options", "disttui.runner.cli.probe"}


def test_probed_host_imports_nothing_that_few_probes_need() -> None:
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "import disttui.runner.node.serve.channel, disttui.runner.node.probe.report\n"
        "print(*{'ctypes', 'platform', 'subprocess', 'tempfile', 'traceback'} & set(sys.modules))"
    )
    # Without the packages of this environment, which hosts do not have.
    words = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    assert not ran(words, check=True).stdout.strip()
