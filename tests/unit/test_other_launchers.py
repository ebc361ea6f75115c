"""mpirun, DeepSpeed's launcher and `accelerate launch` as the node program runs them: ends are written down as under
torchrun, and a SIGTERM reaches every rank once."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from disttui.runner.node import procs
from disttui.runner.node.gang.messages import is_mpi_place
from disttui.runner.node.probe import interpreters
from disttui.runner.node.rank import by_mpirun, mpi_world
from disttui.runner.node.supervise import warden
from disttui.runner.planning.launchers import LAUNCHERS, Place
from disttui.runner.profile.load import parse
from disttui.runner.protocol.cause import Cause, root
from disttui.runner.protocol.gang import MpiPlace
from tests import frameworks
from tests.command import ran
from tests.unit import launcher_kit
from tests.unit.launcher_kit import Launch, alive, free_port, script
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.timeout(400)

_COUNT = """
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *a: asked.append(print("TERM", flush=True)))
print("up", flush=True)
if os.environ["RANK"] == "1" and sys.argv[-1] == "die":
    while not os.path.exists("go"):
        time.sleep(0.02)
    {end}
while not asked:
    time.sleep(0.02)
time.sleep(1)
"""
_INIT = 'import ctypes\nmpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)\nmpi.MPI_Init(None, None)\n'
_TWO = ("-np", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "--allow-run-as-root")
_SHARES = """
import os
folder = os.environ["OMPI_MCA_btl_vader_backing_directory"]
print(folder, os.listdir(folder))
"""
_ABORT = 'mpi.MPI_Abort(ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")), 7)\n'
_PARTS = [
    pytest.param("mpirun", marks=pytest.mark.openmpi),
    pytest.param("deepspeed", marks=[pytest.mark.torch, pytest.mark.frameworks]),
]


def early(*args: str, **env: str) -> dict[str, str]:
    """The variable by which mpirun starts before the start line."""
    return {mpi_world.EARLY: json.dumps({"args": args, "env": env})}


def start(folder: Path, part: str, *job: str, processes: int = 2, met: Callable[[Launch], object] = bool) -> Launch:
    """Start a launcher with the options of its plan, and send it the start line once the hosts have `met`."""
    text = f"{{disttui: 1, hosts: [a], job: {{script: job.py}}, launch: {{launcher: {part}}}}}"
    profile, port = parse(text, "x.yaml"), free_port()
    place = Place(
        profile, (processes,), (None,), 0, str(frameworks.PYTHON), profile.job.target, "gloo", "127.0.0.1", port
    )
    options = LAUNCHERS[part].launcher_args(place)
    python = sys.executable if part == "mpirun" else str(frameworks.PYTHON)
    env = {"DS_ACCELERATOR": "cpu", **(early() if part == "mpirun" else {})}
    one = Launch(folder, *job, part=part, options=options, python=python, env=env)
    one.ready()
    met(one)
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "DISTTUI_FIRST_RANK": "0",
    }
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    args = {"deepspeed": ["--master_addr=127.0.0.1", f"--master_port={port}"]}.get(part, [])
    one.send(args, {"mpirun": meeting, "accelerate-launch": alone}.get(part, {}))
    return one


@pytest.fixture
def started() -> Iterator[list[Launch]]:
    found: list[Launch] = []
    yield found
    for one in found:
        one.close()


def start_world(folder: Path, *jobs: str, each: Sequence[dict[str, str]] = ({}, {})) -> list[Launch]:
    """Start the launchers of two hosts of one MPI world, a rank each, as their supervisors do.

    Args:
        each: The variables of each host.
    """
    profile = parse("{disttui: 1, hosts: [a, b], job: {script: job.py}, launch: {launcher: mpirun}}", "x.yaml")
    interface = dict.fromkeys(mpi_world.INTERFACE, "lo")
    found = []
    for node, job in enumerate(jobs):
        (own := folder / f"host {node}").mkdir()
        place = Place(profile, (1, 1), (None, None), node, sys.executable, profile.job.target, "gloo", "", 0)
        options = LAUNCHERS["mpirun"].launcher_args(place)
        env = {**each[node], **({} if node else early(mpi_world.LEADS, **interface))}
        found.append(Launch(own, "script", script(own, job), part="mpirun", options=options, env=env))
        found[-1].ready()
    meeting = {"MASTER_ADDR": "127.0.0.1", "OMPI_MCA_btl": "self,tcp", "LOCAL_WORLD_SIZE": "1", **interface}
    found[0].send([mpi_world.LEADS], meeting)
    asked = found[0].attempt / mpi_world.PLACE
    wait_for(asked.exists)
    place_of_mpirun = json.loads(asked.read_text())
    assert is_mpi_place(place_of_mpirun), place_of_mpirun
    found[1].send(mpi_world.start_words(place_of_mpirun, 1, 2), meeting)
    return found


def up_all(world: list[Launch]) -> list[int]:
    """Wait until the ranks of both hosts are up; returns their pids."""
    logs = [one.attempt / f"rank-{rank}.log" for rank, one in enumerate(world)]
    wait_for(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
    return [one.reports("start")[rank]["pid"] for rank, one in enumerate(world)]


def up(one: Launch) -> None:
    logs = [one.attempt / f"rank-{rank}.log" for rank in (0, 1)]
    wait_for(lambda: all(log.exists() and "up" in log.read_text() for log in logs))


@pytest.mark.parametrize("part", _PARTS)
def test_killed_rank_is_reported_and_others_get_one_sigterm(part: str, tmp_path: Path, started: list[Launch]) -> None:
    job = script(tmp_path, _COUNT.replace("{end}", "os.kill(os.getpid(), signal.SIGKILL)"))
    started.append(one := start(tmp_path, part, "script", job, "die"))
    up(one)
    (tmp_path / "go").touch()
    failures = {failure["local_rank"]: failure["code"] for failure in one.end()["failures"]}
    assert failures[1] == -signal.SIGKILL, one.log("launcher")
    assert one.log("rank-0") == "up\nTERM\n"


@pytest.mark.parametrize("part", _PARTS)
def test_a_stop_asks_every_rank_once(part: str, tmp_path: Path, started: list[Launch]) -> None:
    started.append(one := start(tmp_path, part, "script", script(tmp_path, _COUNT)))
    up(one)
    one.process.send_signal(signal.SIGTERM)
    one.process.wait(100)
    assert [one.log(f"rank-{rank}") for rank in (0, 1)] == ["up\nTERM\n"] * 2


@pytest.mark.openmpi
def test_mpiruns_exit_codes_and_its_death(tmp_path: Path, started: list[Launch]) -> None:
    """A rank that ends without a word of its own has its code; ranks die with a killed launcher."""
    job = script(tmp_path, _COUNT.replace("{end}", "os._exit(7)"))
    started.append(one := start(tmp_path, "mpirun", "script", job, "die"))
    up(one)
    (one.attempt / "mpirun.codes").write_bytes(b"x y\n\xff 9\n1\n" + b"9" * 5000 + b" 9\n")  # as any job could
    (tmp_path / "go").touch()
    end = one.end()
    assert [(failure["local_rank"], failure["code"]) for failure in end["failures"]] == [(1, 7)], one.log("launcher")
    (again := tmp_path / "again").mkdir()
    started.append(two := start(again, "mpirun", "script", script(again, "import time; time.sleep(600)")))
    pids = wait_for(lambda: len(found := two.reports("start")) == 2 and [each["pid"] for each in found.values()])
    os.kill(two.process.pid, signal.SIGKILL)
    wait_for(lambda: not any(map(alive, pids)), timeout=30)


@pytest.mark.openmpi
def test_mpirun_starts_only_local_ranks_inside_a_batch_job(
    tmp_path: Path, started: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    (hosts := tmp_path / "hosts").write_text("nodea slots=9\n")
    batch = {"SLURM_JOBID": "1", "SLURM_NODELIST": "nodea,nodeb", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NNODES": "2"}
    for name, value in {**batch, "OMPI_MCA_orte_default_hostfile": str(hosts)}.items():
        monkeypatch.setenv(name, value)
    started.append(one := start(tmp_path, "mpirun", "script", script(tmp_path, _COUNT)))
    up(one)
    one.process.send_signal(signal.SIGTERM)
    one.process.wait(100)


def below(pid: int) -> set[int]:
    return procs.descendants(procs.table(), pid)


@pytest.mark.openmpi
def test_mpirun_ranks_wait_until_the_hosts_have_met(tmp_path: Path, started: list[Launch]) -> None:
    tell = "import os\nprint(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"

    def both_shells_wait(one: Launch) -> None:
        wait_for(lambda: len(below(one.process.pid)) == 3)  # mpirun, and a shell for each rank
        assert not (one.attempt / "ranks.jsonl").exists()

    started.append(one := start(tmp_path, "mpirun", "script", script(tmp_path, tell), met=both_shells_wait))
    assert one.end()["code"] == 0, one.log("launcher")
    assert [one.log(f"rank-{rank}") for rank in (0, 1)] == ["0 0 2 127.0.0.1\n", "1 1 2 127.0.0.1\n"]


@pytest.mark.openmpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_waiting_mpirun_ends_with_its_launcher(tmp_path: Path, started: list[Launch], number: signal.Signals) -> None:
    started.append(one := Launch(tmp_path, "script", script(tmp_path, ""), part="mpirun", options=_TWO, env=early()))
    one.ready()
    waiting = wait_for(lambda: len(found := below(one.process.pid)) == 3 and found)
    one.process.send_signal(number)
    one.process.wait(100)
    wait_for(lambda: not any(map(alive, waiting)))
    assert not (one.attempt / "ranks.jsonl").exists()


def test_daemons_use_the_mpirun_address_that_all_hosts_reach() -> None:
    uri = "1.0;tcp://10.0.0.1,172.17.0.1:45523;tcp6://[fd00::2,fd01::2]:50601"
    assert mpi_world.only_at(uri, "10.0.0.1") == "1.0;tcp://10.0.0.1:45523"
    assert mpi_world.only_at(uri, "fd01::2") == "1.0;tcp6://[fd01::2]:50601"
    assert mpi_world.only_at(uri, "192.0.2.1") == uri  # one in front of the host leads to any of them
    sound = MpiPlace(version="4", job="1", nodes="a", uri=mpi_world.only_at(uri, "fd01::2"))
    assert mpi_world.wrong_field(sound) is None


_STOPPED = """
import os, signal
from disttui.runner.node.procs import Proc
from disttui.runner.node.rank import by_mpirun
this, kill, asked = os.getpid(), os.kill, []
def table():
    parents = {1: one._child.pid, 2: 1, 3: 1}
    return {pid: Proc(pid, parents[pid], 0, "S", 0, 0, 1, 0) for pid in parents}
def ask(pid, number):
    asked.append(pid)
    kill(this, signal.SIGTERM)
by_mpirun.procs.table, os.kill = table, ask
by_mpirun.die_with_parent = lambda: kill(os.getppid(), signal.SIGTERM)
one = by_mpirun._Mpirun(["sleep", "1.5"], dict(os.environ))
try:
    one.run([])
finally:
    print(asked)
"""


def test_repeated_stops_of_mpirun_reach_each_rank_once(tmp_path: Path) -> None:
    done = ran([sys.executable, "-c", _STOPPED], env={**launcher_kit.plain(), "DISTTUI_DIR": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (1, "[2, 3]\n", "")
    assert json.loads((tmp_path / "launcher.json").read_text())["signal"] == signal.SIGTERM


@pytest.mark.openmpi
def test_mpirun_with_lost_exit_codes_is_not_a_success(tmp_path: Path, started: list[Launch]) -> None:
    lose = "import os\nos.mkdir(os.environ['DISTTUI_DIR'] + '/mpirun.codes')\nos._exit(7)"
    started.append(one := start(tmp_path, "mpirun", "script", script(tmp_path, lose)))
    assert one.end()["error"] == "mpirun ended, but not every rank's exit code is known"


@pytest.mark.openmpi
@pytest.mark.parametrize(("begin", "end"), [("", "raise SystemExit(7)"), (_INIT, _ABORT)], ids=["exit", "MPI_Abort"])
def test_failure_in_an_mpi_world_belongs_to_the_ranks_host(
    tmp_path: Path, started: list[Launch], begin: str, end: str
) -> None:
    """mpirun leaves the other host's rank alone: it is asked to end, once, by its own supervisor."""
    started += (world := start_world(tmp_path, begin + _COUNT, f"{begin}print('up', flush=True)\n{end}"))
    said = world[1].attempt / "launcher.json"
    wait_for(said.exists)
    assert [(one["local_rank"], one["code"]) for one in json.loads(said.read_text())["failures"]] == [(0, 7)]
    up_all(world)
    for one in world:
        assert one.process.poll() is None, one.log("launcher")
        one.process.send_signal(signal.SIGTERM)
    assert world[0].end()["failures"] == [] and world[1].end()["failures"]
    assert world[0].log("rank-0") == "up\nTERM\n"
    logs = world[0].log("launcher") + world[1].log("launcher")
    assert "PMIX ERROR" not in logs and ("MPI_ABORT was invoked on rank 1" in logs) == bool(begin)


@pytest.mark.openmpi
@pytest.mark.parametrize(("node", "program"), [(0, "mpirun"), (1, "orted")])
def test_killed_mpirun_or_daemon_is_named(tmp_path: Path, started: list[Launch], node: int, program: str) -> None:
    started += (world := start_world(tmp_path, _COUNT, _COUNT))
    up_all(world)
    (child,) = (pid for pid, proc in procs.table().items() if proc.ppid == world[node].process.pid)
    os.kill(child, signal.SIGKILL)
    world[node].process.wait(100)
    end = json.loads((world[node].attempt / "launcher.json").read_text())
    assert (end["code"], end["error"]) == (-9, f"{program} was ended by SIGKILL"), world[node].log("launcher")
    if node == 0:
        world[1].process.wait(100)
        follows = json.loads((world[1].attempt / "launcher.json").read_text())
        codes = [one["code"] for one in follows["failures"]]
        assert codes == [-15] or (follows["code"], follows["error"]) == (-15, "orted lost the first host's mpirun")


_ENDED = """
import os, sys
from disttui.runner.node.rank import by_mpirun
ended = f"import os, signal; os.kill(os.getpid(), {sys.argv[1]})"
by_mpirun._Joining([sys.executable, "-c", ended], dict(os.environ), "").run([])
"""


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (50, "signal 50")])
def test_launcher_killed_by_any_signal_is_reported(tmp_path: Path, number: int, name: str) -> None:
    done = ran([sys.executable, "-c", _ENDED, str(number)], env={**launcher_kit.plain(), "DISTTUI_DIR": str(tmp_path)})
    assert "Traceback" not in done.stderr, done.stderr
    end = json.loads((tmp_path / "launcher.json").read_text())
    assert end["code"] == -number and end["error"].endswith(f"was ended by {name}")


@pytest.mark.openmpi
def test_ranks_that_leave_mpi_finalize_out_have_ended_well(
    tmp_path: Path, started: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpirun itself would wait for ever; of several hosts it may not be ended before the others' ranks are.

    Its temporary files are for this user alone, and gone afterwards, however it has ended.
    """
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    started += (world := start_world(tmp_path, _INIT + "print('up')", _INIT + _COUNT))
    said = world[0].attempt / "launcher.json"
    wait_for(said.exists)
    assert json.loads(said.read_text())["code"] == 0
    up_all(world)
    assert world[0].process.poll() is None and world[1].log("rank-1") == "up\n"
    (alone := tmp_path / "alone").mkdir()
    started.append(one := start(alone, "mpirun", "script", script(alone, _INIT + _SHARES)))
    assert one.end()["code"] == 0, one.log("launcher")
    assert "vader_segment" in one.log("rank-0") and not Path(one.log("rank-0").split()[0]).exists()
    assert [stat.S_IMODE(path.stat().st_mode) for path in temporary.iterdir()] == [0o700, 0o700]
    assert all(list(path.iterdir()) for path in temporary.iterdir()), "Open MPI has its files elsewhere"
    shared = [(launch.attempt / "mpirun.shm").readlink() for launch in world]
    assert [stat.S_IMODE(path.stat().st_mode) for path in shared] == [0o700, 0o700]
    ours = {launch.process.pid for launch in world}
    below = {pid for pid, proc in procs.table().items() if proc.ppid in ours}
    for launch in world:
        launch.process.kill()
        launch.process.wait()
    wait_for(lambda: not any(map(alive, below)))
    for launch in world:
        mpi_world.remove_session(str(launch.attempt))  # as its supervisor does
    assert not list(temporary.iterdir())
    assert not any(path.exists() for path in shared)


def test_temporary_files_of_mpirun_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / uuid.uuid4().hex / "0"
    (attempt := folder / "attempt-1").mkdir(parents=True)
    monkeypatch.setenv("DISTTUI_DIR", str(attempt))
    made = {Path(path) for path in mpi_world.make_session().values()}
    (own := tmp_path / "own").mkdir()
    warden.conclude(str(folder), "the supervisor was killed", None)
    assert made and not any(path.exists() for path in made)
    (attempt / "mpirun.tmp").symlink_to(own)  # as any job could
    mpi_world.remove_session(str(attempt))
    assert own.exists() and not list(attempt.iterdir())


def test_orted_that_lost_mpirun_is_not_the_cause() -> None:
    lost = Cause(node=1, rank=None, kind="launch", type="", message="orted lost mpirun", code=-15, at=1.0)
    killed = Cause(node=0, rank=None, kind="launch", type="", message="mpirun was ended", code=-9, at=2.0)
    assert root([lost, killed]) == killed and root([lost]) == lost


_TELL = """
import json, os
print(json.dumps({name: value for name, value in os.environ.items() if name == "PATH" or "OMPI_MCA_" in name}))
"""
_PORTS = {"min_v4": "32768", "range_v4": "28232", "min_v6": "32768", "range_v6": "28232"}


@pytest.mark.openmpi
def test_mpirun_ranks_get_path_and_settings_of_their_own_host(
    tmp_path: Path, started: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, into = f"/nowhere:{os.environ['PATH']}", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl_tcp_if_include"
    first = {"PATH": path, "OMPI_MCA_btl_tcp_port_min_v4": "40000", "OMPI_MCA_btl_tcp_port_range_v4": "99"}
    other = {"PATH": path, out: "eth7", "OMPI_MCA_mpi_preconnect_mpi": "1"}
    started += (world := start_world(tmp_path, _TELL, _TELL, each=(first, other)))
    tells = [json.loads(one.log(f"rank-{rank}")) for rank, one in enumerate(world) if one.end()["code"] == 0]
    assert [one["PATH"] for one in tells] == [path, path]
    assert (tells[0][into], tells[1][out], out in tells[0], into in tells[1]) == ("lo", "eth7", False, False)
    assert "OMPI_MCA_mpi_preconnect_mpi" not in tells[0] and tells[1]["OMPI_MCA_mpi_preconnect_mpi"] == "1"
    assert tells[0]["OMPI_MCA_btl_tcp_port_min_v4"] == "40000" and tells[0]["OMPI_MCA_btl_tcp_port_min_v6"] == "32768"
    (turned := tmp_path / "turned").mkdir()
    started += (world := start_world(turned, _TELL, _TELL, each=(other, {})))
    tells = [json.loads(one.log(f"rank-{rank}")) for rank, one in enumerate(world) if one.end()["code"] == 0]
    assert (tells[0][out], tells[1][into], into in tells[0], out in tells[1]) == ("eth7", "lo", False, False)
    monkeypatch.setenv("PATH", path)
    (alone := tmp_path / "alone").mkdir()
    started.append(one := start(alone, "mpirun", "script", script(alone, _TELL)))
    assert one.end()["code"] == 0
    told = json.loads(one.log("rank-0"))
    assert told["PATH"] == path and {name: told[f"OMPI_MCA_btl_tcp_port_{name}"] for name in _PORTS} == _PORTS


@pytest.mark.openmpi
def test_mpirun_gives_its_place_for_a_hundred_hosts(tmp_path: Path, started: list[Launch]) -> None:
    hosts = ",".join(f"h{node}" for node in range(100))
    profile = parse(f"{{disttui: 1, hosts: [{hosts}], job: {{script: a.py}}, launch: {{launcher: mpirun}}}}", "x.yaml")
    place = Place(profile, (1,) * 100, (None,) * 100, 0, sys.executable, profile.job.target, "gloo", "", 0)
    options = LAUNCHERS["mpirun"].launcher_args(place)
    started.append(one := Launch(tmp_path, "script", script(tmp_path, ""), part="mpirun", options=options))
    one.ready()
    one.send([mpi_world.LEADS], {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"})
    found = one.attempt / mpi_world.PLACE
    wait_for(lambda: found.exists() or one.process.poll() is not None)
    assert is_mpi_place(given := json.loads(found.read_text())) and given["nodes"].endswith("@0(100)"), given


_APART = """
import os, sys
from disttui.runner.node.rank import by_mpirun, mpi_world
by_mpirun._MEETING, by_mpirun._LATER = 0.3, 0.1
mpi_world.asked = lambda: {"orte_hnp_uri": "", "orte_node_regex": "a", "ess_base_jobid": "1"}
which, *command = sys.argv[1:]
env = dict(os.environ)
one = by_mpirun._Leading(command, env, "4") if which == "leads" else by_mpirun._Joining(command, env, which)
one.run([])
"""


@pytest.mark.parametrize(
    ("which", "command", "code", "said"),
    [
        ("1.0;tcp://127.0.0.1:1", ["sleep", "60"], 1, "this host cannot reach the first host's mpirun at tcp://127.0"),
        ("1.0;tcp://127.0.0.1:1", ["false"], -15, "orted lost the first host's mpirun"),
        ("leads", ["sleep", "60"], 1, "mpirun gives an invalid value for uri: ''"),
    ],
    ids=["it cannot be reached", "it is gone", "it says no place"],
)
def test_a_host_apart_from_mpirun_of_the_first_one_says_why(
    tmp_path: Path, which: str, command: list[str], code: int, said: str
) -> None:
    subprocess.run(
        [sys.executable, "-c", _APART, which, *command], capture_output=True, timeout=100, check=False,
        env={**launcher_kit.plain(), "DISTTUI_DIR": str(tmp_path), "MASTER_ADDR": "127.0.0.1"},
    )  # fmt: skip
    end = json.loads((tmp_path / "launcher.json").read_text())
    assert end["code"] == code and said in end["error"], end


@pytest.mark.openmpi
def test_hosts_with_different_open_mpi_form_no_world_and_say_so(tmp_path: Path, started: list[Launch]) -> None:
    place = MpiPlace(version="mpirun (Open MPI) 4.0.3", job="1", nodes="a,b@0(2)", uri="1.0;tcp://127.0.0.1:1")
    one = Launch(tmp_path, "script", script(tmp_path, ""), part="mpirun", options=())
    started.append(one)
    one.ready()
    one.send(mpi_world.start_words(place, 1, 2), {"LOCAL_WORLD_SIZE": "1"})
    said = one.end()["error"]
    assert re.match(r"mpirun is mpirun .* \S+, but on the first host mpirun \(Open MPI\) 4\.0\.3: ", said), said


@pytest.mark.parametrize(
    "change",
    [
        {"uri": "1.0;tcp://127.0.0.1:1 -mca x y"},
        {"uri": "file:/etc/passwd"},
        {"nodes": "a b"},
        {"job": "-1"},
        {"version": "x\n"},
        {"more": "x"},
    ],
)
def test_mpi_place_that_could_alter_a_command_is_rejected(change: dict[str, str]) -> None:
    sound = {"version": "4", "job": "1", "nodes": "vm,[3:240].0.0.1@0(2)", "uri": "1.0;tcp://10.0.0.1,10.1.0.1:45523"}
    assert is_mpi_place(sound) and is_mpi_place({**sound, "uri": f"{sound['uri']};tcp6://[fd00::2]:50601"})
    assert not is_mpi_place({**sound, **change})


def test_odd_exit_code_files_neither_block_nor_fill_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTTUI_DIR", str(tmp_path))
    codes = tmp_path / by_mpirun.CODES
    os.mkfifo(codes)
    assert by_mpirun._failures() == []
    codes.unlink()
    codes.write_bytes(b"3 9\n" * 1_000_000)
    assert 1 < len(by_mpirun._failures()) < 20_000
    codes.unlink()
    codes.mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert by_mpirun._failures() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_open_mpi_that_warns_before_its_version_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the survey, where it has 5 s of the probe's time to say so, and where it starts."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho a module is old >&2\necho 'mpirun (Open MPI) 4.1.4'\necho Report bugs\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    by_mpirun.prepare()
    assert interpreters._version_of("mpirun", 15.0, str(tmp_path)) == "mpirun (Open MPI) 4.1.4"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    monkeypatch.setattr(interpreters, "_VERSION_LIMIT", 0.2)
    assert interpreters._version_of("mpirun", 15.0, str(tmp_path)) is None


@pytest.mark.torch
@pytest.mark.frameworks
def test_accelerate_launch_reports_how_one_process_was_killed(tmp_path: Path, started: list[Launch]) -> None:
    text = "import os, signal\nassert os.environ['WORLD_SIZE'] == '1'\nos.kill(os.getpid(), signal.SIGKILL)"
    started.append(one := start(tmp_path, "accelerate-launch", "script", script(tmp_path, text), processes=1))
    failures = [(failure["local_rank"], failure["code"]) for failure in one.end()["failures"]]
    assert failures == [(0, -signal.SIGKILL)], one.log("launcher")
