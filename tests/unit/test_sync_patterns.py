"""The patterns of .disttuiignore, compared with git itself."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner.errors import InputError
from disttui.runner.protocol.objects import Store
from disttui.runner.sync.collect import Wanted, collect
from disttui.runner.sync.patterns import Ignored, Patterns

_PARTS = [
    "a", "b", "ab", "*", "**", "?", "a*", "*b", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[[:alpha:]]", "[[:digit:]x]",
    "[z-a]", r"\a", r"\*", "a*b*", "*.py", "***", "[a", "ü", "a b", "a ", r"a\ ", "#a", r"\#a", "!a", r"\!a", "-a",
    "[a-]", r"[\]]", "x[/]y", "[[:nosuch:]]", "a[!/]b", "1", "a\\",
]  # fmt: skip
_NAMES = ["a", "b", "ab", "abb", "x.py", "a b", "a ", "#a", "!a", "-a", "ü", "1", "*", "]", "c", "a\\"]


def _ignored_by_git(top: Path, paths: list[str]) -> set[str]:
    asked = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin", "-z"], cwd=top, input=os.fsencode("\0".join(paths)),
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    return {os.fsdecode(path) for path in asked.stdout.split(b"\0") if path}


def _cases() -> Iterator[list[str]]:
    chosen = random.Random(39)
    for length in (1,) * 60 + (2,) * 60 + (4,) * 40:
        yield [
            chosen.choice(["", "", "!"])
            + chosen.choice(["", "", "/"])
            + "/".join(chosen.choices(_PARTS, k=chosen.choice([1, 1, 2, 3])))
            + chosen.choice(["", "", "/", " ", "\r"])
            for _ in range(length)
        ]


def test_they_mean_what_they_mean_in_gitignore(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    chosen = random.Random(40)
    paths = sorted({"/".join(chosen.choices(_NAMES, k=chosen.choice([1, 2, 2, 3]))) for _ in range(200)})
    for folder in ("a", "ab/b"):
        (tmp_path / folder).mkdir(parents=True)
    files: list[str] = []
    for path in paths:
        full = tmp_path / path
        if not any(above.is_file() for above in full.parents) and not full.exists():
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_text("")
            files.append(path)
    for lines in _cases():
        for folder, some in (("", lines), ("a", chosen.sample(lines, 1)), ("ab/b", lines[:1])):
            for name in (".gitignore", ".disttuiignore"):
                (tmp_path / folder / name).write_text("\n".join(some))
        patterns = Ignored(tmp_path)
        ours = {path for path in files if patterns.matching_any_part(path)}
        assert ours == _ignored_by_git(tmp_path, files), lines


@pytest.mark.parametrize("git", [False, True], ids=["plain", "git"])
def test_later_pattern_includes_what_an_earlier_one_excludes(tmp_path: Path, git: bool) -> None:
    code = tmp_path / "code"
    for name in ("data/big.csv", "data/small.csv", "out/a", "__pycache__/kept.pyc", "wandb/kept", "train.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / ".disttuiignore").write_text("data/*\n!data/small.csv\nout/\n!out/a\n!__pycache__/\n!*.pyc\n!wandb/\n")
    if git:
        subprocess.run(["git", "init", "-q"], cwd=code, check=True)
    found = collect(Wanted(code), Store(str(tmp_path / "objects")), tmp_path / "cache")
    assert [os.fsdecode(one.path) for one in found.entries] == [
        ".disttuiignore", "__pycache__/kept.pyc", "data/small.csv", "train.py", "wandb/kept"
    ]  # fmt: skip
    left_out = {one.path: one.why for one in found.omitted}
    assert left_out["data/big.csv"] == "excluded by data/*"
    assert set(left_out.values()) == {"excluded by data/*", "excluded by out/"}, "git re-includes nothing below out/"
    found = collect(Wanted(code, ("*.csv",)), Store(str(tmp_path / "objects")), tmp_path / "cache")
    assert not any(one.path.endswith(b".csv") for one in found.entries), "job.sync.exclude is the last word"


def test_a_file_in_a_folder_decides_about_what_is_there(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in ("lib/a.csv", "lib/b.csv", "lib/deep/a.csv", "b.csv", "out/kept", "data/x.csv"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / ".disttuiignore").write_text("*.csv\nout/\n")
    (code / "lib/.disttuiignore").write_text("!*.csv\n/a.csv\n")
    (code / "out/.disttuiignore").write_text("!kept\n")
    store = Store(str(tmp_path / "objects"))
    found = collect(Wanted(code), store, tmp_path / "cache")
    names = [".disttuiignore", "lib/.disttuiignore", "lib/b.csv", "lib/deep/a.csv"]
    assert [os.fsdecode(one.path) for one in found.entries] == names
    left_out = {one.path: one.why for one in found.omitted}
    assert left_out["lib/a.csv"] == "excluded by /a.csv in lib/.disttuiignore"
    assert left_out["b.csv"] == "excluded by *.csv" and left_out["out/"] == "excluded by out/"
    found = collect(Wanted(code, ("*.csv",)), store, tmp_path / "cache")
    assert not any(one.path.endswith(b".csv") for one in found.entries), "job.sync.exclude is the last word"
    (code / "new\nline").mkdir()
    for name in (".disttuiignore", "a.tmp"):
        (code / "new\nline" / name).write_text("*.tmp")
    left_out = {one.path: one.why for one in collect(Wanted(code), store, tmp_path / "cache").omitted}
    assert left_out[r"new\nline/a.tmp"] == r"excluded by *.tmp in new\nline/.disttuiignore"
    (code / "lib/.disttuiignore").unlink()
    (code / "lib/.disttuiignore").mkdir()
    with pytest.raises(InputError, match=r"lib/\.disttuiignore: cannot be read"):
        collect(Wanted(code), store, tmp_path / "cache")
    (code / "lib/.disttuiignore").rmdir()
    (code / "lib/.disttuiignore").write_text("a.csv\n" * 200_000)
    with pytest.raises(InputError, match=r"lib/\.disttuiignore: larger than 1 MiB"):
        collect(Wanted(code), store, tmp_path / "cache")


def test_many_stars_are_matched_in_time() -> None:
    assert not Patterns(["*a" * 60 + "b"]).matching("a" * 250)
