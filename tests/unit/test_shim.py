"""A script under the rank shim sees, says and ends as one that was started by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runner import ship

DATA = Path(__file__).parents[1] / "data" / "shim"
ADDED = {
    "DISTTUI_DIR", "DISTTUI_METRICS", "DISTTUI_RUN", "DISTTUI_NODE", "DISTTUI_ATTEMPT", "PYTHONUNBUFFERED",
}  # fmt: skip


def interpreters() -> list[str]:
    """This one, and whatever other versions the machine has."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(8, 16):
        path = shutil.which(f"python3.{minor}")
        if path and (3, minor) not in found and works(path):
            found[3, minor] = path
    return [found[version] for version in sorted(found)]


def works(python: str) -> bool:
    return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0


class Shim:
    """A folder to work in, and ways to run one script bare and as rank 0 of 1."""

    def __init__(self, folder: Path, node_zip: Path) -> None:
        self.folder = folder
        self.zip = node_zip
        self.attempt = folder / "attempt-1"
        self.attempt.mkdir()
        self.python = sys.executable
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))},
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        }  # fmt: skip
        self.ours = {
            "DISTTUI_DIR": str(self.attempt), "DISTTUI_RUN": folder.name, "DISTTUI_NODE": "0", "DISTTUI_ATTEMPT": "1",
        }  # fmt: skip

    def command(self, kind: str, value: str, *args: str) -> list[str]:
        return [self.python, "-u", str(self.zip), "shim", kind, value, *args]

    def start(self, kind: str, value: str, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(kind, value, *args),
            cwd=self.folder, env={**self.env, **self.ours, **env},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, kind: str, value: str, *args: str, **env: str) -> tuple[int, str]:
        """Run to the end; the exit code, and what came out on the inherited streams."""
        child = self.start(kind, value, *args, **env)
        said = child.communicate(timeout=120)[0]
        return child.returncode, said

    def bare(self, kind: str, value: str, *args: str, **env: str) -> tuple[int, str]:
        how = ["-m", value] if kind == "module" else [value]
        done = subprocess.run(
            [self.python, "-u", *how, *args],
            cwd=self.folder, env={**self.env, **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def log(self) -> str:
        return (self.attempt / "rank-0.log").read_text()

    def reports(self) -> list[dict[str, Any]]:
        path = self.attempt / "ranks.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def script(self, text: str, name: str = "job.py") -> str:
        (self.folder / name).write_text(text)
        return name


@pytest.fixture(scope="session")
def node_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node") / "node.zip"
    path.write_bytes(ship.node_parcel().data)
    return path


@pytest.fixture
def shim(tmp_path: Path, node_zip: Path) -> Shim:
    return Shim(tmp_path, node_zip)


def wait_for(what: Any, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def lay_out(folder: Path) -> None:
    """The probing script as a file, in a sub-folder, as a package, as a zip and as a folder with __main__.py."""
    for place in (folder, folder / "sub", folder / "pkg", folder / "tree"):
        place.mkdir(exist_ok=True)
        for name in ("probe.py", "profile.py", "secrets.py", "sibling.py"):
            shutil.copy(DATA / name, place / name)
    (folder / "pkg" / "__init__.py").touch()
    shutil.copy(DATA / "probe.py", folder / "pkg" / "__main__.py")
    (folder / "tree" / "probe.py").rename(folder / "tree" / "__main__.py")
    (folder / "link.py").symlink_to(folder / "sub" / "probe.py")
    with zipfile.ZipFile(folder / "job.zip", "w") as archive:
        archive.write(DATA / "probe.py", "__main__.py")
        for name in ("profile.py", "secrets.py", "sibling.py"):
            archive.write(DATA / name, name)


@pytest.mark.parametrize("python", interpreters())
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("script", "probe.py"),
        ("script", "./probe.py"),
        ("script", "sub/../sub/probe.py"),
        ("script", "{folder}/sub/probe.py"),
        ("script", "link.py"),
        ("script", "job.zip"),
        ("script", "tree"),
        ("module", "probe"),
        ("module", "pkg.probe"),
        ("module", "pkg"),
    ],
)
def test_a_script_sees_what_it_would_see_bare(shim: Shim, python: str, kind: str, value: str) -> None:
    shim.python = python
    lay_out(shim.folder)
    value = value.format(folder=shim.folder)
    args = ["--weird", "a b", "$(x)", "'", "\n", ""]
    bare_code, bare_said = shim.bare(kind, value, "bare-%s.json", *args)
    code, said = shim.run(kind, value, "ours-%s.json", *args)
    assert (bare_code, bare_said) == (0, "leaving Thing json\n")
    assert said == ""
    assert (code, shim.log()) == (bare_code, bare_said)

    bare, ours = (json.loads((shim.folder / f"{who}-0.json").read_text()) for who in ("bare", "ours"))
    assert set(ours["env"]) - set(bare["env"]) == ADDED
    for name in ADDED:
        ours["env"].pop(name)
    for seen in (bare, ours):
        for values in (seen["argv"], seen["orig_argv"] or []):
            values[:] = [word.replace("ours-", "bare-") for word in values]
        for method in ("spawn", "fork"):
            seen[method][3] = seen[method][3][1:]
    assert ours == bare


@pytest.mark.parametrize("python", interpreters())
@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('boom')",
        "def f():\n  g()\ndef g():\n  try: 1/0\n  except Exception as e: raise KeyError('x') from e\nf()",
        "x = (",
        "import sys; print('a'); sys.exit(7)",
        "import sys; sys.exit('so sorry')",
        "import sys; sys.exit(None)",
        "import sys; sys.exit(300)",
        "import sys; sys.exit(-1)",
        "import os; os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "raise KeyboardInterrupt",
        "f = open('unflushed', 'w'); f.write('kept'); raise KeyboardInterrupt",
        "import sys; sys.excepthook = lambda *a: print('hook', a[0], a[2].tb_lineno); raise ValueError",
        "import sys; sys.excepthook = lambda *a: 1/0\nraise ValueError('first')",
        "import sys; sys.excepthook = lambda *a: sys.exit(5)\nraise ValueError",
        "import atexit, threading, time\natexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nraise ValueError",
        "import warnings; warnings.warn('old')",
        "class E(Exception):\n  def __str__(self): raise RuntimeError\nraise E",
        "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()",
    ],
)
def test_a_script_ends_as_it_would_bare(shim: Shim, python: str, text: str) -> None:
    shim.python = python
    script = shim.script(text)
    bare = shim.bare("script", script)
    code, said = shim.run("script", script)
    assert said == ""
    assert (code, shim.log()) == bare
