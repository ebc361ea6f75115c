"""A script under the rank shim sees, says and ends as one that was started by hand."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.rank.identity import adopt
from tests.files import new_file, tmpfs
from tests.kept import node_program

DATA = Path(__file__).parents[1] / "data" / "shim"
ADDED = {
    "DISTTUI_DIR", "DISTTUI_METRICS", "DISTTUI_RUN", "DISTTUI_NODE", "DISTTUI_ATTEMPT", "PYTHONUNBUFFERED",
}  # fmt: skip


@functools.cache
def interpreters() -> list[str]:
    """This one, and whatever other versions the machine has."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(8, 16):
        path = shutil.which(f"python3.{minor}")
        if path and (3, minor) not in found and works(path):
            found[3, minor] = path
    return [found[version] for version in sorted(found)]


def works(python: str) -> bool:
    folder = Path(python).parent
    if folder.name == "shims" and not any(folder.parent.glob(f"versions/*/bin/{Path(python).name}")):
        return False  # pyenv says so itself, in a tenth of a second for each worker of pytest
    return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0


class Shim:
    """A folder to work in, and ways to run one script bare and as rank 0 of 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zip = node_program()
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
        said = child.communicate(timeout=60)[0]
        return child.returncode, said

    def bare(self, kind: str, value: str, *args: str, **env: str) -> tuple[int, str]:
        how = ["-m", value] if kind == "module" else [value]
        done = subprocess.run(
            [self.python, "-u", *how, *args],
            cwd=self.folder, env={**self.env, **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
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


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(tmp_path)


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
    assert set(ours) == set(bare)
    for what in bare:
        assert ours[what] == bare[what], what


@pytest.mark.parametrize("python", interpreters())
@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('boom')",
        "def f():\n  g()\ndef g():\n  try: 1/0\n  except Exception as e: raise KeyError('x') from e\nf()",
        "x = )",
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


def test_uncaught_exception_is_reported_with_user_frames(shim: Shim) -> None:
    code, _ = shim.run("script", shim.script("def f():\n    raise KeyError('missing')\nf()\n"))
    error, leave = shim.reports()[1:]
    assert code == 1
    assert (error["e"], error["type"], error["message"]) == ("error", "KeyError", "'missing'")
    assert error["traceback"] == shim.log()
    assert (leave["e"], leave["code"]) == ("exit", 1)


@pytest.mark.parametrize(("text", "codes"), [("", [0]), ("exit(3)", [3]), ("import os; os._exit(3)", [])])
def test_exit_of_a_script_is_reported_with_its_code(shim: Shim, text: str, codes: list[int]) -> None:
    shim.run("script", shim.script(text))
    start, *rest = shim.reports()
    assert (start["e"], start["rank"], start["local_rank"], start["world_size"]) == ("start", 0, 0, 1)
    assert [r["code"] for r in rest] == codes


def test_a_fork_that_leaves_by_exit_reports_nothing(shim: Shim) -> None:
    shim.run("script", shim.script("import os, sys\nif os.fork() == 0: sys.exit(4)\nos.wait()"))
    assert [r.get("code") for r in shim.reports() if r["e"] == "exit"] == [0]


def test_a_fork_that_raises_is_not_the_end_of_the_rank(shim: Shim) -> None:
    shim.run("script", shim.script("import os\nif os.fork() == 0: raise ValueError\nos.wait()"))
    assert [r["e"] for r in shim.reports() if r["e"] in ("error", "exit")] == ["exit"]


@pytest.mark.parametrize("kind", ["command", "script"])
def test_without_instruments_only_the_redirection_remains(shim: Shim, kind: str) -> None:
    text = (
        "import faulthandler, sys, os\n"
        "print(sys.argv[1:], faulthandler.is_enabled(), '_disttui' in sys.modules, os.environ['DISTTUI_METRICS'])\n"
        "print(open('/proc/self/oom_score_adj').read().strip(), os.getpid())\n"
    )
    script = shim.script(text)
    words = [sys.executable, script] if kind == "command" else [script]
    before = int(Path("/proc/self/oom_score_adj").read_text())
    code, said = shim.run(kind, *words, "$(x)", "a b", DISTTUI_INSTRUMENT="0")
    assert (code, said) == (0, "")
    (start,) = shim.reports()
    assert (start["door"], start["signal"]) == (None, None)
    assert shim.log().splitlines() == [
        f"['$(x)', 'a b'] False False {shim.attempt}/rank-0.metrics.jsonl",
        f"{min(1000, before + 500)} {start['pid']}",
    ]


def test_a_command_that_is_not_there(shim: Shim) -> None:
    code, _ = shim.run("command", "no-such-command")
    assert (code, shim.log()) == (127, "disttui: no-such-command: No such file or directory\n")


def test_unwritable_log_leaves_the_output_in_place(shim: Shim) -> None:
    (shim.attempt / "rank-0.log").mkdir()
    code, said = shim.run("script", shim.script("print('hello')"))
    assert code == 0
    first, second = said.splitlines()
    assert first.startswith(f"disttui: cannot write {shim.attempt}/rank-0.log, so its output is here: ")
    assert second == "hello"


def test_pipes_in_place_of_its_files_do_not_block_a_rank(shim: Shim) -> None:
    for name in ("rank-0.log", "rank-0.stacks", "ranks.jsonl"):
        os.mkfifo(shim.attempt / name)
    code, said = shim.run("script", shim.script("print('hello')"))
    assert (code, said.splitlines()[-1]) == (0, "hello")


def test_rank_ends_although_a_pipe_replaced_its_reports(shim: Shim) -> None:
    text = "import os\npath = os.environ['DISTTUI_DIR'] + '/ranks.jsonl'\nos.unlink(path)\nos.mkfifo(path)\n"
    assert shim.run("script", shim.script(text + "exit(3)"))[0] == 3


def test_a_scripts_output_waits_for_the_disk_as_it_does_by_hand(shim: Shim) -> None:
    shim.run("script", shim.script("import os\nprint(os.get_blocking(1), os.get_blocking(2))"))
    assert shim.log() == "True True\n"


def test_a_process_that_no_launcher_started(shim: Shim) -> None:
    del shim.env["RANK"]
    code, said = shim.run("script", "x.py")
    assert code == 2
    assert said.startswith("disttui: the launcher did not set this process's rank")


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "SLURM_PROCID": "0"},
    ],
)  # fmt: skip
def test_other_launchers_variables_become_torchs(variables: dict[str, str]) -> None:
    env = dict(variables)
    assert adopt(env) == (3, 1, 4)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("3", "4", "1")
    assert env.get("LOCAL_WORLD_SIZE", "2") == "2"
    assert env.get("GROUP_RANK", "1") == "1"


def test_shim_ignores_user_files_named_like_stdlib_modules(shim: Shim) -> None:
    for name in ("json", "socket", "signal", "traceback", "hashlib"):
        (shim.folder / f"{name}.py").write_text(f"print('the user has imported {name}')")
    code, _ = shim.run("script", shim.script("import hashlib, socket"), PYTHONPATH=str(shim.folder))
    assert (code, shim.log()) == (0, "the user has imported hashlib\nthe user has imported socket\n")
    assert [r["e"] for r in shim.reports()] == ["start", "exit"]


def test_a_rank_whose_parent_has_gone_ends_at_once(shim: Shim) -> None:
    code, _ = shim.run("script", shim.script("print('never')"), DISTTUI_PARENT="1")
    assert code == 143
    assert shim.reports() == []


@pytest.mark.root
def test_a_program_on_a_disk_that_starts_none_says_so(shim: Shim) -> None:
    with tmpfs(shim.folder / "disk", "noexec") as there:
        new_file(there / "run.sh", "#!/bin/sh\n", 0o755)
        assert shim.run("command", "./disk/run.sh")[0] == 126
        assert shim.log() == "disttui: ./disk/run.sh: Permission denied (its disk is mounted noexec)\n"
