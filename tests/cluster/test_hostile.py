"""Hostile values of a profile reach the job byte for byte and no shell; hostile bytes of a host reach no terminal."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.typed import User, typed

pytestmark = pytest.mark.torch

_VALUES = [
    "--",
    "--help",
    "",
    "-c",
    "--nnodes=7",
    "it's",
    'say "hi"',
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "; touch /tmp/pwned #",
    "${HOME} $HOME ~ ~root * ? [a-z] {a,b} !! %s %% &&|<>",
    "back\\slash \\n \\\\ end\\",
    "two\nlines\r\nand\ttabs\n",
    "ä 中 🦊 \u202e \u2028 \ufeff \u0301",
    "\x01\x1b]0;title\x07\x7f\x9b",
    " spaces ",
    "null",
    "{}",
]
_DUMP = """
import json, os, sys
values = {name: os.environb[name].hex() for name in os.environb if name.startswith(b"V_")}
values = {name.decode(): value for name, value in values.items()}
record = {"argv": [os.fsencode(word).hex() for word in sys.argv[1:]], "env": values, "cwd": os.getcwd()}
with open(os.environ["OUT"], "w") as file:
    json.dump(record, file)
"""


def _env(out: Path) -> dict[str, str]:
    return {"OUT": str(out), "V_SECRET": "${env:TOKEN}!", **{f"V_{k}": value for k, value in enumerate(_VALUES)}}


@pytest.mark.parametrize("kind", ["script", "command"])
def test_values_arrive_as_they_are(user: Callable[..., User], kind: str) -> None:
    """As arguments, variables, folder and script names; the command goes through an activation's shell as well."""
    me = user(1, light=True)
    [host] = me.cluster.hosts
    word = secrets.token_hex(8)  # a word that no source contains: the checkout itself may be below /tmp
    secret = f"{word} '\"$(touch /tmp/pwned)\\\n"
    work = host.home / "wo rk'$(touch pwned)\""
    work.mkdir()
    name = "-it's $(touch pwned) é.py"
    (work / name).write_text(_DUMP)
    out = me.cluster.shared / "out.json"
    command = {"command": [sys.executable, f"./{name}", *_VALUES]}
    target = {"script": name, "args": _VALUES} if kind == "script" else command
    more = {} if kind == "script" else {"activate": "true 'quoted\"'"}
    profile = me.profile({**target, "workdir": f"~/{work.name}", "env": _env(out)}, **more)
    running = me.run(profile, env={"TOKEN": secret})
    seen = json.loads(out.read_text())
    assert [bytes.fromhex(word).decode() for word in seen["argv"]] == _VALUES
    expected = {**_env(out), "V_SECRET": f"{secret}!"}
    del expected["OUT"]
    assert {variable: bytes.fromhex(value).decode() for variable, value in seen["env"].items()} == expected
    assert seen["cwd"] == f"/root/{work.name}"
    assert host.run("find / -maxdepth 1 -name 'pwned*'; find /tmp /root -name 'pwned*'").stdout == ""
    assert host.run(f"grep -rl {word} /root /tmp").stdout == "", "the secret was stored on the host"
    stored = [path for path in running.mirror.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
    assert stored == []


_NASTY = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x1bPq\x1b\\\x9b31m\u009d\u202egnp.exe\u2066\u200f\r\x08\x00"
_SPEAK = f"""
import os, sys
nasty = {_NASTY!r}
os.write(1, b"first " + nasty.encode() + b"\\xff\\x9b31m\\x9d52;c;x\\x07 word\\n")
sys.stderr.write("Step 1 | Loss: 0.5 | " + nasty + ": 3\\n")
raise ValueError("the end " + nasty + " of it")
"""


def test_remote_bytes_never_reach_the_terminal(user: Callable[..., User]) -> None:
    """Escape sequences, C1 controls and bidi marks in output, exceptions, host names and login scripts."""
    me = user(1)
    [host] = me.cluster.hosts
    # Within ASCII and its 64 bytes, else neither torch nor the kernel would take it.
    rename = f"import socket; socket.sethostname({'evil' + _NASTY[:20] + chr(13) + 'disttui: forged'!r})"
    host.run([sys.executable, "-c", rename], check=True)
    (host.home / ".bashrc").write_text(f"printf '%s\\n' '{_NASTY[:-1]} noise'\n")
    running = me.run(me.profile({"script": str(me.script(_SPEAK))}), code=1, merged=True)
    shown = running.out.read_bytes()
    assert b"first " in shown
    assert b"the end " in shown
    text = shown.decode()
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text) == [], text
    assert "cHduZWQ" not in text
    assert "hostname evildisttui: forged" in typed(me, "runs show", running.mirror.name)


def test_login_noise_is_cleaned_where_it_is_shown(user: Callable[..., User]) -> None:
    """Where no Python starts, what the host said is shown without its escape sequences."""
    me = user(1)
    noise = f"import sys; sys.stderr.write('sorry, maintenance' + {_NASTY!r}); sys.exit(9)"
    fake = me.script(f"#!/bin/sh\n''''exec {shlex.quote(sys.executable)} \"$0\" \"$@\" # '''\n{noise}\n", "python")
    fake.chmod(0o755)
    running = me.run(me.profile({"command": ["true"]}, python=str(fake)), code=3, merged=True)
    text = running.out.read_bytes().decode()
    assert "sorry, maintenance" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), text
