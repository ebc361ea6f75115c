"""Terminals and files that cannot show every character: nothing fails, and every cell stays where it is."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.cells import cell_len

from disttui.runner.text.glyphs import encoding_of, fit, plain
from tests.tui.synthetic_run import write

ROOT = Path(__file__).parents[2]
DISTTUI = str(Path(sys.executable).with_name("disttui"))


@pytest.mark.parametrize(
    ("environ", "encoding", "utf8_mode", "base"),
    [
        ({"LANG": "de_DE.UTF-8"}, "utf-8", False, None),
        ({}, "utf-8", True, None),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8", True, "ascii"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8", False, None),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "utf-8", True, "ascii"),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, "utf-8", True, None),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, "utf-8", True, None),
        ({"LANG": "de_DE.ISO-8859-1", "LC_CTYPE": "C.UTF-8"}, "utf-8", True, "iso8859-1"),
        ({"LANG": "de_DE.ISO-8859-1"}, "ISO-8859-1", False, "iso8859-1"),
        ({"LANG": "de_DE.UTF-8", "TERM": "linux"}, "utf-8", False, "utf-8"),
    ],
)
def test_the_terminal_is_judged_by_locale_encoding_and_term(
    environ: Mapping[str, str], encoding: str, utf8_mode: bool, base: str | None
) -> None:
    assert encoding_of(environ, encoding, utf8_mode=utf8_mode, terminal=True) == base
    wanted = None if encoding == "utf-8" else base
    assert encoding_of(environ, encoding, utf8_mode=utf8_mode, terminal=False) == wanted


def test_every_glyph_of_ours_has_one_in_ascii() -> None:
    used = {
        glyph for folder in ("tui", "runner") for path in (ROOT / folder).rglob("*.py")
        for glyph in re.findall(r"[\u00b0-\u00ff\u2010-\u2bff]", path.read_text())
    }  # fmt: skip
    assert used >= set("●◌▲✗◇✓■━│…")
    used |= set("↑↓←→")  # of keys in the footer
    for glyph in used | {chr(code) for code in range(0x2500, 0x25A0)} | {chr(code) for code in range(0x2800, 0x2900)}:
        shown = plain(glyph, "ascii")
        assert len(shown) == cell_len(glyph) == 1 and shown.isascii() and shown.isprintable(), glyph
        assert glyph == "◇" or shown != "?", f"{glyph} needs a line in the table"


def test_what_a_bar_has_done_and_what_remains_differ_in_ascii() -> None:
    for base in ("ascii", "utf-8"):
        assert plain("0:50 ━━━●──✗── 1:49", base) == "0:50 ===o--x-- 1:49"
    assert plain("┊attempt 2", "ascii") == "|attempt 2"


def test_words_of_others_keep_their_width() -> None:
    assert plain("Zoë in 日本 👩\u200d🚀", "ascii") == "Zoe in ???? ??"
    assert plain("Zoë × 日本", "iso8859-1") == "Zoë × ????"
    assert plain("Zoë × 日本 ●", "utf-8") == "Zoë × 日本 o"


def test_nothing_that_is_written_fails_for_a_character() -> None:
    for encoding in ("ascii", "iso8859-1", "shift_jis", "utf-8"):
        file = io.BytesIO()
        stream = io.TextIOWrapper(file, encoding, errors="strict")
        fit(stream, {}, utf8_mode=False)
        stream.write("● n1 │ é 日本 \udcff…\n")
        stream.flush()
        assert file.getvalue().endswith(b"\n") and b"\\u" not in file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1", "ascii:strict"])
@pytest.mark.parametrize("words", [["ps"], ["runs", "show", "run-1"], ["logs", "run-1"], ["nosuch"]], ids=" ".join)
def test_commands_print_in_any_encoding(words: list[str], encoding: str, tmp_path: Path) -> None:
    write(tmp_path / "disttui" / "runs" / "run-1", hosts=2, per_host=1, steps=3)
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "XDG_DATA_HOME": str(tmp_path), "TERM": "xterm"}
    done = subprocess.run([DISTTUI, *words], env=environ, capture_output=True, timeout=120, check=False)
    assert b"UnicodeEncodeError" not in done.stderr and b"\\u" not in done.stdout + done.stderr
    assert done.returncode == (2 if words == ["nosuch"] else 0), done.stderr


def test_a_terminal_without_an_encoding_gets_ascii(tmp_path: Path) -> None:
    write(tmp_path / "disttui" / "runs" / "run-1", hosts=2, per_host=1, steps=3)
    environ = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LC_CTYPE", "PYTHONUTF8")}
    environ |= {"LANG": "C", "XDG_DATA_HOME": str(tmp_path), "TERM": "xterm"}
    master, terminal = pty.openpty()
    with subprocess.Popen([DISTTUI, "runs", "show", "run-1"], env=environ, stdout=terminal, stderr=terminal) as command:
        os.close(terminal)
        seen = b""
        try:
            while more := os.read(master, 65536):
                seen += more
        except OSError:  # the end of a terminal
            pass
    os.close(master)
    assert command.returncode == 0, seen
    assert b"finished" in seen and seen.isascii() and b"\\u" not in seen
