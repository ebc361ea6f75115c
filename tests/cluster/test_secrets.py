"""A secret that is passed by reference is in the environment of the ranks, and nowhere else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.typed import COMMAND, User
from tests.command import ran
from tests.files import new_file

pytestmark = pytest.mark.torch

# Words that no source holds: the checkout itself may lie where the test searches.
FROM_ENV, FROM_FILE, FROM_COMMAND = QUIET = tuple(f"kept-quiet-{secrets.token_hex(8)}" for _ in range(3))
PRINTED = 'said aloud by "ranks" 4ü'

# Reports what it was given as hashes, waits until the test has looked, then prints one of the secrets and fails by it.
_TRAIN = """
import hashlib, json, os, pathlib, sys, time

here = pathlib.Path(__file__).parent
names = ("A", "B", "C", "D")
seen = {name: hashlib.sha256(os.environ[name].encode()).hexdigest() for name in names if name in os.environ}
part = here / ("part-" + os.environ["RANK"])
part.write_text(json.dumps(seen))
part.rename(here / ("seen-" + os.environ["RANK"]))
while not (here / "enough").exists():
    time.sleep(0.05)
print("the word is", os.environ["D"], flush=True)
print(json.dumps({"key": os.environ["D"]}), flush=True)
if os.environ["RANK"] == "1":
    while not (here / "printed").exists():
        time.sleep(0.05)
    raise ValueError("refused: " + os.environ["D"])
(here / "printed").touch()
time.sleep(600)
"""


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def _files(root: Path) -> Iterator[Path]:
    """Every file below a folder on the same file system."""
    device = root.stat().st_dev
    for folder, below, names in os.walk(root):
        below[:] = [each for each in below if Path(folder, each).lstat().st_dev == device]
        yield from (Path(folder, name) for name in names if Path(folder, name).is_file())


def _holds(paths: Iterator[Path], values: tuple[str, ...]) -> list[str]:
    needles = [value.encode() for value in values]
    found = []
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError:
            continue
        found += [str(path) for needle in needles if needle in data]
    return found


class _Processes(threading.Thread):
    """What `ps -ef` shows of this machine and of all hosts, again and again, read where ps reads it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.seen, self.samples = threading.Event(), set[tuple[str, bytes]](), 0

    @property
    def shown(self) -> str:
        return "\n".join(words.replace(b"\0", b" ").decode(errors="replace") for _, words in list(self.seen))

    def run(self) -> None:
        while not self.over.wait(0.05):
            for entry in os.scandir("/proc"):
                with contextlib.suppress(OSError):  # no process, or it has ended
                    self.seen.add((entry.name, Path(entry.path, "cmdline").read_bytes()))
            self.samples += 1

    def __enter__(self) -> _Processes:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def _typed(me: User, env: Mapping[str, str], *words: str) -> str:
    done = ran(me.command(*words), cwd=me.home, env=me.environment(**env))
    assert "/runner/" not in done.stderr, "no error of disttui's own"
    return done.stdout + done.stderr


def test_secrets_are_only_in_the_environment_of_their_ranks(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config/disttui").mkdir(parents=True)
    new_file(home / ".token", FROM_FILE + "\n", 0o600)
    store = new_file(tmp_path / "store", FROM_COMMAND)
    (home / ".config/disttui/config.yaml").write_text(f"secret_commands: [cat {store}]\n")
    with closing(User(cluster(2), home, light=True)) as me:
        env = {"KEY_A": FROM_ENV, "WORD": PRINTED}
        script = me.script(_TRAIN)
        hosts = [{"host": "node1", "env": {"B": "${file:~/.token}", "C": f"${{cmd:cat {store}}}"}}, "node2"]
        job = {"script": str(script), "env": {"A": "Bearer ${env:KEY_A}", "D": "${env:WORD}"}}
        ended = ["sh", "-c", f"cat > {home}/summary.json"]
        profile = me.profile(job, hosts, on_end={"command": ended}, activate="true")
        with _Processes() as processes:
            running = me.start(profile, env=env)
            seen = [json.loads(running.wait_file(me.cluster.shared / f"seen-{rank}")) for rank in (0, 1)]
            most = processes.samples + 3
            running.wait_for(lambda: processes.samples > most)
            (me.cluster.shared / "enough").touch()
            assert running.wait() == 1
        common = {"A": _digest("Bearer " + FROM_ENV), "D": _digest(PRINTED)}
        assert seen == [{**common, "B": _digest(FROM_FILE), "C": _digest(FROM_COMMAND)}, common]
        assert "${file:~/.token} goes to node1, as B" in running.stderr
        run = next(path.name for path in (home / ".local/share/disttui/runs").iterdir())

        for host in me.cluster.hosts:
            # Its /root without what is mounted below that, such as this checkout.
            places = [host.home, *(host.root / name for name in ("home", "tmp", "run", "dev/shm", "var/tmp"))]
            assert _holds((path for place in places for path in _files(place)), QUIET) == []
        assert _holds(_files(me.cluster.shared), QUIET) == []
        assert _holds((path for path in _files(home) if path.name != ".token"), QUIET) == []
        assert processes.shown.count("job.py") > 2 and not any(value in processes.shown for value in (*QUIET, PRINTED))

        printed = running.stdout + running.stderr + (home / "summary.json").read_text()
        assert "the word is ***" in running.stdout and "ValueError: refused: ***" in running.stderr
        exported = str(home / "out")
        for words in (
            ("profile plan", "--json", str(profile)),
            ("profile export", str(profile), "--to", "script", "--probe", "-o", exported),
            ("runs show", run), ("runs show", "--json", run),
            ("logs", run), ("attach", "--json", run), ("diagnose", run),
        ):  # fmt: skip
            printed += _typed(me, env, *words)
        printed += ran([COMMAND, "profile", "validate", str(profile)], env=me.environment(**env), check=True).stdout
        assert printed.count("the word is ***") >= 6
        for value in (*QUIET, PRINTED, json.dumps(PRINTED)[1:-1], 'ranks\\" 4'):
            assert value not in printed
        assert _holds(_files(home / "out"), (*QUIET, PRINTED)) == []
