"""Ranks forked from the launcher cannot be told from ranks that torchrun starts; where they could, none is forked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launcher_kit import Launch, alive, script
from tests.unit.waiting import wait_for

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

SEEN = """
import json, os, random, resource, signal, sys, time, multiprocessing, gc, threading, warnings, tempfile
os.environ["TMPDIR"] = os.getcwd()
temporary = tempfile.gettempdir() == os.getcwd()
begun = time.process_time()
import torch, numpy, torch._dynamo
cost = time.process_time() - begun
read = lambda name: open("/proc/self/" + name, "rb").read().decode()
numbers = sorted(int(n) for n in os.listdir("/proc/self/fd"))
seen = {
    "cmdline": read("cmdline").split("\\0")[3:], "comm": read("comm"), "exe": os.path.realpath("/proc/self/exe"),
    "environ": sorted(w.split("=", 1)[0] for w in read("environ").split("\\0") if w),
    "variables": sorted(os.environ), "temporary": temporary, "omp": os.environ["OMP" + "_NUM_THREADS"],
    "targets": [os.readlink("/proc/self/fd/%d" % n) for n in numbers if n < 3],
    "descriptors": [os.readlink("/proc/self/fd/%d" % n).split(":")[0] for n in numbers if n >= 3 and os.path.exists(
        "/proc/self/fd/%d" % n)],
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [line for line in read("status").splitlines() if line.startswith("Sig") and "SigQ" not in line],
    "handlers": [str(signal.getsignal(n)) for n in (1, 2, 3, 13, 15, 17, 25)],
    "limits": [resource.getrlimit(n) for n in range(16)], "filter": read("coredump_filter"),
    "streams": [repr(type(s.buffer)) + s.mode + repr(s.name) + repr(s.write_through) + s.errors + s.encoding for s in (
        sys.stdout, sys.stderr)],
    "gc": [gc.isenabled(), gc.get_threshold()], "filters": len(warnings.filters),
    "threads": threading.active_count(), "torch": torch.get_num_threads(),
    "flags": repr(sys.flags), "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
    "limit": sys.getrecursionlimit(), "switch": sys.getswitchinterval(),
}
authkey = multiprocessing.current_process().authkey.hex()
drawn = [authkey, random.random(), torch.rand(1).item(), float(numpy.random.random())]
with open("seen-%s.json" % os.environ["RANK"], "w") as file:
    json.dump({"seen": seen, "drawn": drawn, "cost": cost, "parent": os.getppid()}, file)
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(*job: str, name: str = "", **how: Any) -> Launch:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        started.append(Launch(folder, *job, preload=True, **how))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


def test_a_forked_rank_sees_what_a_started_one_sees(launch: Callable[..., Launch], tmp_path: Path) -> None:
    found = {}
    for name, modules in (("forked", "torch torch._dynamo"), ("started", "")):
        (tmp_path / name).mkdir()
        one = launch("script", script(tmp_path / name, SEEN), "a b", "", name=name, env={"DISTTUI_PRELOAD": modules})
        one.go()
        assert one.end()["code"] == 0, one.log("launcher") + one.log("rank-0")
        found[name] = _ranks(tmp_path / name)
        assert all(rank["parent"] == one.process.pid for rank in found[name])
    for forked, started in zip(found["forked"], found["started"], strict=True):
        for what in started["seen"]:
            text = json.dumps(forked["seen"][what]).replace("/forked/", "/started/")
            assert json.loads(text) == started["seen"][what], what
    assert max(rank["cost"] for rank in found["forked"]) < min(rank["cost"] for rank in found["started"]) / 5
    for drawn in zip(*(rank["drawn"] for rank in found["forked"]), strict=True):
        assert drawn[0] != drawn[1]


PLAIN_JOB = "import os, torch; print(torch.get_num_threads(), os.environ.get('KEEP'))"


FAKE_TORCH = """
import sys, types
sys.modules["torch.distributed"] = None
version, cuda = types.SimpleNamespace(hip=None), types.SimpleNamespace(is_initialized=int, _is_in_bad_fork=int)
"""


@pytest.mark.parametrize(
    ("files", "env", "why"),
    [
        ({"job.py": "from part import a", "part/__init__.py": "", "part/a.py": "x = 'MKL_DYNAMIC'"},
         {}, "a.py names MKL_DYNAMIC"),
        ({"job.py": "if 1: import os, part as p", "part.py": "import os; os.environ['TQDM_DISABLE'] = '1'"}, {},
         "part.py names TQDM_DISABLE"),
        ({"job.py": "from lib import a", "more/lib.py": "import os; os.environ['TORCH_LOGS'] = 'x'"}, {},
         "lib.py names TORCH_LOGS"),
        ({"job.py": "from setproctitle import setproctitle"}, {}, "job.py names setproctitle"),
        ({"more/torch.py": FAKE_TORCH + "import torch_npu", "more/torch_npu.py": ""}, {}, "tried with torch_npu"),
        ({"queue.py": "", "more/torch.py": FAKE_TORCH + "import queue"}, {},
         "the job's folder has its own module queue"),
        ({}, {"LD_PRELOAD": "libm.so.6"}, "LD_PRELOAD is set"),
        ({"more/sitecustomize.py": "import os; os.environ.get('LOCAL_RANK')"}, {}, "sitecustomize.py names RANK"),
        ({"more/sitecustomize.py": "import sys; sys.settrace(lambda *a: None)"}, {}, "traced"),
        ({"more/torch.py": FAKE_TORCH + "print('loud', file=sys.stderr)"}, {}, "prints something"),
        ({"more/torch.py": FAKE_TORCH + "version.hip = '6.4'"}, {}, "ROCm"),
        ({"more/torch.py": FAKE_TORCH + "cuda.is_initialized = lambda: True"}, {}, "initialises CUDA"),
        ({"more/torch.py": FAKE_TORCH + "cuda._is_in_bad_fork = lambda: True"}, {}, "CUDA cannot be used in a fork"),
        ({"more/torch.py": FAKE_TORCH + "import queue, threading\n"
          "threading.Thread(target=queue.Queue().get, daemon=True).start()"}, {}, "starts a thread"),
        ({}, {"DISTTUI_PRELOAD": "torch no_such_module"}, "No module named 'no_such_module'"),
    ],
)  # fmt: skip
def test_no_rank_is_forked_that_would_differ(
    launch: Callable[..., Launch], tmp_path: Path, files: dict[str, str], env: dict[str, str], why: str
) -> None:
    for name, text in {"job.py": "", "more/torch.py": FAKE_TORCH, **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    one = launch("script", "job.py", env={"PYTHONPATH": "more", **env})
    one.go()
    assert "has no torchrun" in one.end()["error"]
    assert why in one.log("launcher")
    assert "each rank imports torch itself" in one.log("launcher")


def test_a_script_that_sets_threads_before_its_import_has_them(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, "import os; os.environ['OMP_NUM_THREADS'] = '2'\n" + PLAIN_JOB))
    one.go()
    assert one.end()["code"] == 0, one.log("launcher")
    assert "job.py names OMP_NUM_THREADS" in one.log("launcher")
    assert one.log("rank-0") == "2 None\n"


def test_late_variable_disables_forked_ranks(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, PLAIN_JOB))
    one.ready()
    one.go(KEEP="kept")
    assert one.end()["code"] == 0
    assert "KEEP came after the import" in one.log("launcher")
    assert one.log("rank-1") == "1 kept\n"


def test_forked_ranks_that_wait_end_with_the_launcher(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, PLAIN_JOB))
    one.ready()
    children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
    assert len(children) == 2
    one.process.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(alive(int(pid)) for pid in children))


def test_a_rank_that_was_killed_while_it_waited_is_started(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, PLAIN_JOB))
    one.ready()
    first = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()[0]
    os.kill(int(first), signal.SIGKILL)
    wait_for(lambda: not alive(int(first)))
    one.go()
    assert one.end()["code"] == 0, one.log("launcher")
    assert one.log("rank-0") == one.log("rank-1") == "1 None\n"


def test_a_forked_rank_that_cannot_begin_has_failed(launch: Callable[..., Launch], tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sitecustomize.py").write_text("import numpy.random\nnumpy.random.seed = lambda: 1 / 0\n")
    one = launch("script", script(tmp_path, PLAIN_JOB), env={"PYTHONPATH": "more"})
    one.go()
    assert one.end()["failures"][0]["code"] == 1, one.log("launcher")
    assert "ZeroDivisionError" in one.log("launcher")
