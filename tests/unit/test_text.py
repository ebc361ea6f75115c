"""Remote bytes never reach the terminal as anything but text."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.text import LINE_LIMIT, LineMaker, clean, clean_lines

DANGEROUS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\u2028\u2029\ufeff]")


def lines_of(data: bytes, size: int = 0) -> list[str]:
    maker = LineMaker()
    pieces = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    return [line for piece in pieces for line in maker.feed(piece)] + maker.flush()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]0;never ended", ""),
        ("\x1b]52;c;ZXZpbA==\x1b\\x", "x"),
        ("\x9b2Jcleared", "cleared"),
        ("\x90dcs\x9cx", "x"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("a\x00b\x07c\x08d", "abcd"),
        ("two\nlines\r\nhere", "two lines here"),
        ("ab\u202ecd\u2066", "abcd"),
        ("tab\tstays", "tab\tstays"),
        ("grün 学習 🚀", "grün 学習 🚀"),
        ("\x1b", ""),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        ("a\u00adb\u034fc\u180ed\u3164e\u206af\u206fg\u115fh\uffa0i\ufe00j\U000e0100k", "abcdefghijk"),
        ("a\u200db\ufe0fc\u200d", "abc"),
        ("👩\u200d💻 🏳\ufe0f\u200d🌈 ❤\ufe0f 1\ufe0f\u20e3", "👩\u200d💻 🏳\ufe0f\u200d🌈 ❤\ufe0f 1\ufe0f\u20e3"),
        ("👩\u200d\u202e💻", "👩💻"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text())
def test_clean_leaves_nothing_dangerous(raw: str) -> None:
    assert not DANGEROUS.search(clean(raw))


def test_no_character_that_shows_nothing_is_left() -> None:
    """Format characters and all that Unicode calls default ignorable, one by one and in a log's line."""
    ignorable = {0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0,
                 *range(0x180B, 0x1810), *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070),
                 *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)}  # fmt: skip
    # Signs of Arabic and Kaithi that span the digits after them are seen.
    seen = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    formats = {code for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"}
    for code in sorted((ignorable | formats) - seen):
        assert clean(f"a{chr(code)}b") == "ab", hex(code)
        assert lines_of(f"a{chr(code)}b\n".encode()) == ["ab"], hex(code)


SGR = re.compile("\x1b\\[[0-9;:]*m")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m and on", "\x1b[1;31mred\x1b[0m and on\x1b[0m"),
        ("\x1b[38;5;208morange", "\x1b[38;5;208morange\x1b[0m"),
        ("\x1b[38;2;5;6;8mrgb", "\x1b[38;2;5;6;8mrgb\x1b[0m"),
        ("\x1b[5mblink\x1b[1;8mhidden", "blinkhidden"),
        ("\x1b[2J\x1b[31mred\x1b]0;title\x07", "\x1b[31mred\x1b[0m"),
        ("\x1b]0;never \x1b[31m ended", "\x1b[31m ended\x1b[0m"),
        ("10%\r\x1b[32m100%", "100%"),
    ],
)
def test_a_scripts_own_colours_are_kept_for_a_terminal(raw: str, shown: str) -> None:
    maker = LineMaker(colours=True)
    assert maker.feed(raw.encode() + b"\n") == [shown]


@pytest.mark.parametrize(
    "codes", [":8", "8:1", "38;8", "38;2;1;8", "38:8", "1;08", "38;5;1;8", "58;9", "005", "9999999"]
)
def test_a_colour_that_terminals_read_in_different_ways_is_none(codes: str) -> None:
    """Some take the rest of a broken one for a code of its own, such as 8, which hides what follows."""
    assert LineMaker(colours=True).feed(f"\x1b[{codes}mx\n".encode()) == ["x"]


@pytest.mark.parametrize(
    "codes", ["", "0", "1;31", "38;5;208", "01;48;2;1;2;3;4", "38:2::1:2:3", "4:3", "58;5;8", "85"]
)
def test_a_colour_by_the_book_is_kept(codes: str) -> None:
    assert LineMaker(colours=True).feed(f"\x9b{codes}mx\n".encode()) == [f"\x1b[{codes}mx\x1b[0m"]


@given(st.binary(max_size=500) | st.text("\x1b\x9b[]38;5m\x07ab\r", max_size=40).map(str.encode))
def test_colours_are_all_that_a_terminal_gets(data: bytes) -> None:
    maker = LineMaker(colours=True)
    for line in maker.feed(data) + maker.flush():
        assert not DANGEROUS.search(SGR.sub("", line))
        assert line.endswith("\x1b[0m") or "\x1b" not in line


@pytest.mark.parametrize("emoji", ["👨‍👩‍👧", "👩🏽‍💻", "❤️‍🔥"])
def test_an_emoji_of_several_is_one(emoji: str) -> None:
    assert clean(emoji) == emoji
    assert lines_of(f"{emoji} x\n".encode()) == [f"{emoji} x"]
    assert clean("a\u200db") == "ab"


@given(st.binary(max_size=2000), st.integers(1, 64))
def test_lines_are_safe_and_the_same_for_every_cut(data: bytes, size: int) -> None:
    whole = lines_of(data)
    assert whole == lines_of(data, size)
    assert not any(DANGEROUS.search(line) for line in whole)


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=50)))
def test_ordinary_lines_come_through_unchanged(lines: list[str]) -> None:
    assert lines_of("".join(line + "\n" for line in lines).encode()) == lines


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"10%\r50%\r100%\n", ["100%"]),
        (b"longer text\rshort\n", ["shortr text"]),
        (b"dos\r\nfile\r\n", ["dos", "file"]),
        (b"bad \xff utf\n", ["bad \ufffd utf"]),
        (b"no end", ["no end"]),
        (b"\n\n", ["", ""]),
        (b"\x1b[1mbold\x1b[0m\rb\n", ["bold"]),
    ],
)
def test_line_rules(raw: bytes, shown: list[str]) -> None:
    assert lines_of(raw) == shown


def test_a_line_without_end_is_cut_and_complete() -> None:
    data = b"x" * (LINE_LIMIT * 3 + 5)
    lines = lines_of(data, 10_000)
    assert max(map(len, lines)) == LINE_LIMIT
    assert "".join(lines).encode() == data


@pytest.mark.parametrize("size", [0, 1000, LINE_LIMIT])
@pytest.mark.parametrize("character", ["x", "é", "学", "🚀"])
def test_lines_are_cut_by_bytes_whatever_their_characters(character: str, size: int) -> None:
    wide = len(character.encode())
    fits = character * (LINE_LIMIT // wide)
    lines = lines_of(f"{fits}\n{fits}x{'x' * wide}\n".encode(), size)
    assert lines[0] == fits
    assert len(lines) == 3 and all(len(line.encode("utf-8", "replace")) <= LINE_LIMIT + 4 for line in lines)
    assert lines == lines_of(f"{fits}\n{fits}x{'x' * wide}\n".encode())


def test_a_progress_bar_can_be_seen_before_its_line_ends() -> None:
    maker = LineMaker()
    assert maker.feed(b"  1%\r  2%\r 30%") == []
    assert maker.progress() == " 30%"
    assert maker.feed(b"\r100%\n") == ["100%"]
    assert maker.progress() is None


@pytest.mark.parametrize("character", "\xad\u034f\u115f\u180e\u206a\u206f\u3164\uffa0\U0001d173\U000e0100", ids=ascii)
def test_characters_that_nobody_sees_are_taken_out(character: str) -> None:
    """Two names that look alike must be alike."""
    assert clean(f"node{character}1") == "node1"
    assert lines_of(f"node{character}1\n".encode()) == ["node1"]


def test_an_emoji_keeps_its_form() -> None:
    assert clean("done \u2764\ufe0f") == "done \u2764\ufe0f"


def test_clean_lines_keeps_the_lines() -> None:
    assert clean_lines("a\x1b[31m\nb\x07") == "a\nb"
