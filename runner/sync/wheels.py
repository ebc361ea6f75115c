"""Downloads wheels on this machine for hosts that cannot reach a package index."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from disttui.runner.errors import HostError
from disttui.runner.paths import inside
from disttui.runner.profile.problems import printable
from disttui.runner.protocol.requests import Offline

_PLAIN = re.compile(
    r"[A-Za-z0-9][\w.-]*\s*(\[[^]@/$]*\]\s*)?([(<>=!~][^@/$;]*)?(;[^@$]*)?"
    r"|([A-Za-z0-9][\w.-]*\s*(\[[^]@/$]*\]\s*)?@\s*)?https://[^\s@#$;]+\.whl(#sha256=[0-9a-f]{64})?"
)
"""A requirement without an address, or with that of a wheel."""
_REFERS = frozenset(("-r", "--requirement", "-c", "--constraint"))
_HARMLESS = _REFERS | {
    *("-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--pre"),
    *("--prefer-binary", "--require-hashes", "--hash"),
}
"""Options of a requirements file with which pip still downloads only wheels."""
_CURE = "Give the host access to a package index, or set job.environment.wheels"


def download(files: Mapping[str, str], host: str, wanted: Offline, to: Path, environ: Mapping[str, str]) -> None:
    """Download the wheels of a requirements file for a host into a folder.

    Args:
        files: Name → text; the first is the requirements file, the others are files that it refers to.
        wanted: The host's Python version, machine, libc and inherited torch.

    Raises:
        HostError: This machine cannot download them either, or pip might build one, which runs its author's code here.
    """
    for name, text in files.items():
        if line := next(filter(_may_build, text.splitlines()), None):
            what = (
                f"This machine downloads only wheels, and for {printable(f'{name}: {line[:200]}')} it might build one."
            )
            raise HostError(host, f"{wanted['why']}\n{what}", f"{_CURE}.")
    minor = re.fullmatch(r"glibc-2\.(\d{1,2})", wanted["libc"])
    names = [f"manylinux_2_{n}" for n in range(int(minor[1]), 16, -1)] if minor else ["musllinux_1_2", "musllinux_1_1"]
    platforms = [f"{name}_{wanted['machine']}" for name in (*names, *(["manylinux2014"] if minor else []))]
    words = ["--python-version", wanted["tag"], "--implementation", "cp", "--only-binary", ":all:"]
    words += [word for one in platforms for word in ("--platform", one)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, text in files.items():
            path = inside(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8-sig")  # pip would obey another encoding that the text names
        stub = _stub(wanted, platforms[0], to) if wanted["torch"] else None
        if stub is not None:
            inside(folder, "inherited.txt").write_text(f"torch=={wanted['torch']}\n")
            words += ["-c", str(folder / "inherited.txt"), "--find-links", str(to)]
        done = subprocess.run(
            # Not in the folder of the files: Python would import modules from there.
            [*_pip(host, wanted), "download", "-d", str(to), "-r", str(folder / next(iter(files))), *words], cwd=to,
            env={**environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode:
        said = printable("; ".join(done.stdout.decode("utf-8", "replace").strip().splitlines()[-3:])[:1000])
        raise HostError(host, f"{wanted['why']}\nThis machine cannot download the wheels either: {said}", f"{_CURE}.")
    if stub is not None:
        stub.unlink()


def _may_build(line: str) -> bool:
    """Whether pip might build a package because of a line of a requirements file, although it is to take wheels only.

    A part of a continued line is judged alone.
    """
    try:
        words = shlex.split(re.sub(r"(^|\s)#.*", "", line).rstrip("\\"))
    except ValueError:
        return True
    options = [word for word in words if word.startswith("-")]
    names = {option.partition("=")[0] for option in options}
    if names - _HARMLESS:
        return True
    if options and words[0] == options[0]:
        return bool(names & _REFERS) and "://" in line
    required = words[: words.index(options[0])] if options else words
    return bool(required) and not _PLAIN.fullmatch(" ".join(required))


def _pip(host: str, wanted: Offline) -> list[str]:
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = next(filter(None, map(shutil.which, ("pip3", "pip", "uvx"))), None)
    if found is None:
        raise HostError(host, wanted["why"], f"{_CURE}; or install pip or uv here: this machine then sends them.")
    return [found, "pip"] if Path(found).name == "uvx" else [found]


def _stub(wanted: Offline, platform: str, to: Path) -> Path:
    """Make an empty wheel for the torch that a host inherits, so that torch and its dependencies are not downloaded."""
    python, torch = wanted["tag"].replace(".", ""), wanted["torch"]
    made = inside(to, f"torch-{torch}-999-cp{python}-cp{python}-{platform}.whl")
    with zipfile.ZipFile(made, "w") as empty:
        info = f"torch-{torch}.dist-info"
        empty.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
        empty.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        empty.writestr(f"{info}/RECORD", "")
    return made
