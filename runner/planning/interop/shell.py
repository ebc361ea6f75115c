"""Splits a shell script into commands and tracks the known values of its variables, without running anything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

_T = TypeVar("_T")

_SPACE = re.compile(r"(?:[^\S\n]|\\\n)+")
_SPACE_OF_TEST = re.compile(r"(?:[^\S\n]|\\\n|[()]|\|(?!\|))+")
_PLAIN = re.compile(r"[^\s\\'\"$`;&|<>()]+")
_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([@*]|[0-9]{1,5})\])?(?::?([-=?])(.*))?", re.DOTALL)
_COUNTED = re.compile(r"#([A-Za-z_]\w*)\[[@*]\]")
_SLICED = re.compile(r"(?:([@*])|([A-Za-z_]\w*)\[[@*]\]): ?(\d{1,5})(?::(\d{1,5}))?")
_SUM = re.compile(r"(\w+)(?:([*/+-])(\w+))?")
_REDIRECTION = re.compile(r"(?:\d*|&)(<<<|<<-?|[<>]&\d|[<>]+[&|]?)")
_ENDS = re.compile(r";;|&&|\|\||[;&|()\n]")
_WHICH = re.compile(r"\s*(?:which|command -v|type -p)\s+([\w.-]+)\s*(?:2>\s*/dev/null\s*)?")
_GLOB = re.compile(r"[*?\[]")
_ESCAPED_TEXT = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(.))", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_TO_QUOTE = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"(?<=\s)#[^\n]*|[()\\'\"]")
_BRACE = re.compile(r"\$\{|\}|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*'", re.DOTALL)
_BRACE_IN_QUOTES = re.compile(r"\$\{|\}|\\.|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_COUNT_OF_GPUS = re.compile(r"nvidia-smi|rocm-smi|device_count\(|_VISIBLE_DEVICES|/dev/nvidia")
COUNTS_GPUS = "GPUs are counted when the job starts"
"""The reason for an unknown value that a command derives from the number of GPUs."""
_DEEPEST = 8
"""Nested `${NAME:-default}` that are evaluated."""
_INHERITED = ("PATH", "HOME", "USER", "SHELL", "LANG")
"""Variables that every login exports."""
_LARGEST = 1 << 22
"""Characters of all values together: a value that contains others twice grows exponentially."""
_MOST_WORDS = 50_000
"""Words of one command."""
_OPEN, _CLOSE = "\ue000", "\ue001"
"""Enclose the name of an unknown variable inside a value; the characters are for private use in Unicode."""
_UNKNOWN = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


class UnreadScriptError(Exception):
    """The script cannot be read from a line on. Arguments: the line and the reason."""


class Piece(NamedTuple):
    """A part of a word."""

    kind: Literal["text", "name", "count", "sum", "output", "array"]
    text: str = ""
    """By kind: literal text, a variable's name, the name of an array whose words are counted, an arithmetic expression,
    a command whose output is inserted, or the words of an array."""
    quoted: bool = False
    default: str | None = None
    """The default of a `name`, as written, or None."""
    number: str = ""
    """The subscript of an array: an index, `@` or `*` for all words, `2:` or `2:3` for a slice, "" for the first."""


@dataclass(frozen=True)
class Word:
    """A word as written, and its parts."""

    source: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class SimpleCommand:
    """A simple command, without its redirections."""

    line: int
    source: str
    words: tuple[Word, ...]
    text: Word | None = None
    """Its standard input, if it is in the script: `<<END`, `<<< TEXT`."""
    writes: Word | None = None
    """The file to which its output is redirected: `> FILE` or `>> FILE`."""
    appends: bool = False
    end: str = ""
    """The operator after it, such as `|`; `(` after the name of a function."""
    after: str = ""
    """The `&&` or `||` before it, or ""."""
    inside: int = 0
    """Number of parentheses around it; each starts a subshell."""


_BEFORE_COMMANDS = frozenset(("if", "elif", "else", "while", "until", "for", "then", "do", "!", "{"))
"""Words after which a command begins, or the `((…))` of a `for`."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at, self._start = text, 0, 0
        self._here: list[Word] = []
        """Delimiters of the here-documents that begin at the next line."""
        self._waiting: list[tuple[SimpleCommand, int]] = []
        """Commands of a line that has here-documents, each with the number of its own, counted from 1; 0 for none."""
        self._writes: Word | None = None
        """The file to which the current command's output is redirected."""
        self._appends = False
        self._inside = 0
        self._given: Word | None = None
        """The current command's `<<<` text."""
        self._space = _SPACE
        """What separates words; within `[[ ]]` also the brackets and `|`, which group and match there."""

    def commands(self) -> Iterator[SimpleCommand]:
        """Yield each simple command. Raises UnreadScriptError."""
        text, words, start, stop, after = self.text, list[Word](), 0, 0, ""
        line, counted, texts = 1, 0, 0
        while self.at <= len(text):
            if space := self._space.match(text, self.at):
                self.at = space.end()
            char = text[self.at : self.at + 1]
            calculated = self._calculated() if not words or words[-1].source in _BEFORE_COMMANDS else 0
            end = _ENDS.match(text, self.at) if char in ";&|()\n" and not calculated else None
            if end or self.at >= len(text):
                if words:
                    line, counted = line + text.count("\n", counted, start), start
                    ends = end[0] if end else ""
                    more = (self._given, self._writes, self._appends, ends, after, self._inside)
                    found = SimpleCommand(line, text[start:stop], tuple(words), *more)
                    if self._here:
                        self._waiting.append((found, len(self._here) if len(self._here) > texts else 0))
                    else:
                        yield found
                if words or (end and end[0] in ("&&", "||")):
                    after = end[0] if end and end[0] in ("&&", "||") else ""
                words, texts = [], len(self._here)
                self._begin_next(end)
                if not end or end[0] == "\n":
                    yield from self._with_texts()
                    texts = 0
            elif char in "<>&0123456789" and (redirection := _REDIRECTION.match(text, self.at)):
                self._redirect(redirection)
                stop = self.at
            elif char == "#":
                self.at = self._line_end()
            else:
                start = start if words else self.at
                words.append(self._word(calculated))
                if len(words) > _MOST_WORDS:
                    what = f"a command of more than {_MOST_WORDS:,} words: ignored"
                    raise UnreadScriptError(
                        line + text.count("\n", counted, start), f"{what}, like all that follows it"
                    )
                stop = self.at

    def _calculated(self) -> int:
        """Return the end of an arithmetic command such as `((N = N + 1))`, or 0 if the parentheses are subshells."""
        if not self.text.startswith("((", self.at) or self.text[self.at - 1 : self.at] == "(":
            return 0
        closing = self._closing(self.at)
        return closing if self._closing(self.at + 1) == closing - 1 else 0

    def _begin_next(self, end: re.Match[str] | None) -> None:
        """Move past the operator that ends a command."""
        self._inside = max(0, self._inside + {"(": 1, ")": -1}.get(end[0] if end else "", 0))
        self._writes = self._given = None
        if not end or end[0] not in ("&&", "||", "\n"):
            self._space = _SPACE
        self.at = end.end() if end else self.at + 1

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _redirect(self, found: re.Match[str]) -> None:
        self.at = found.end()
        if found[1][-1].isdigit():
            return
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1
        if self.at < len(self.text) and not _ENDS.match(self.text, self.at):
            word = self._word()
            if found[1] in ("<<", "<<-"):
                self._here.append(word)
            elif found[1] == "<<<":
                self._given = word
            elif found[0] in (">", "1>", ">|", ">>", "1>>"):
                self._writes, self._appends = word, found[1] == ">>"

    def _with_texts(self) -> Iterator[SimpleCommand]:
        """Yield the waiting commands of a line with the here-documents below it."""
        read = []
        for word in self._here:
            ending, lines = "".join(piece.text for piece in word.pieces), list[str]()
            while self.at < len(self.text):
                end = self._line_end()
                line, self.at = self.text[self.at : end], end + 1
                if line.strip() == ending:
                    break
                lines.append(f"{line}\n")
            read.append(_text_of("".join(lines), plain=any(piece.quoted for piece in word.pieces)))
        for command, number in self._waiting:
            yield replace(command, text=read[number - 1]) if number else command
        self._here, self._waiting = [], []

    def _word(self, calculated: int = 0) -> Word:
        start, pieces, text = self.at, list[Piece](), self.text
        self._start = start
        if calculated:
            self.at = calculated
            return Word(text[start:calculated], (Piece("text", text[start:calculated], quoted=True),))
        while self.at < len(text):
            char = text[self.at]
            if plain := _PLAIN.match(text, self.at):
                self.at = plain.end()
                pieces.append(Piece("text", plain[0]))
            elif char == "\\":
                after = text[self.at + 1 : self.at + 2]
                pieces += [Piece("text", after, quoted=True)] if after not in ("", "\n") else []
                self.at = min(self.at + 2, len(text))
            elif char == "'":
                end = self._find("'", self.at + 1)
                pieces.append(Piece("text", text[self.at + 1 : end], quoted=True))
                self.at = end + 1
            elif char == '"':
                pieces += self._quoted()
            elif char in "$`":
                pieces += self._expansion(quoted=False)
            elif char == "(" and text[self.at - 1] == "=":
                begin, self.at = self.at + 1, self._closing(self.at)
                pieces.append(Piece("array", text[begin : self.at - 1]))
            else:
                break
        if (source := text[start : self.at]) in ("[[", "]]"):
            self._space = _SPACE_OF_TEST if source == "[[" else _SPACE
        return Word(source, tuple(pieces))

    def _find(self, what: str, at: int) -> int:
        found = self.text.find(what, at)
        if found < 0:
            raise self._unclosed(self._start)
        return found

    def _unclosed(self, start: int) -> UnreadScriptError:
        what = "unclosed quotes or brackets: nothing is read from here on"
        return UnreadScriptError(self.text.count("\n", 0, start) + 1, what)

    def _quoted(self) -> list[Piece]:
        pieces, text = [Piece("text", quoted=True)], self.text
        self.at += 1
        while self.at < len(text):
            char = text[self.at]
            if char == '"':
                self.at += 1
                return pieces
            if plain := _IN_QUOTES.match(text, self.at):
                self.at = plain.end()
                pieces.append(Piece("text", plain[0], quoted=True))
            elif char == "\\":
                after = text[self.at + 1 : self.at + 2]
                kept = "" if after == "\n" else after if after in ('"', "\\", "$", "`") else char + after
                pieces.append(Piece("text", kept, quoted=True))
                self.at += 2
            else:
                pieces += self._expansion(quoted=True)
        raise self._unclosed(self._start)

    def _closing(self, at: int) -> int:
        """Return the position after the parenthesis that closes the one at `at`. Raises UnreadScriptError."""
        depth = 0
        while found := _BRACKET.search(self.text, at):
            at = found.end()
            if found[0] == "\\":
                at += 1
            elif found[0] == "'":
                at = self._find("'", at) + 1
            elif found[0] == '"':
                quoted = _TO_QUOTE.match(self.text, at)
                if not quoted:
                    raise self._unclosed(self._start)
                at = quoted.end()
            elif found[0][0] != "#":
                depth += 1 if found[0] == "(" else -1
                if not depth:
                    return at
        raise self._unclosed(self._start)

    def _expansion(self, *, quoted: bool) -> list[Piece]:
        text, start = self.text, self.at
        if text[start] == "`":
            self.at = self._find("`", start + 1) + 1
            inside = text[start + 1 : self.at - 1]
            return _printed_text(inside, quoted) or [Piece("output", inside, quoted)]
        if text.startswith("$(", start):
            self.at = self._closing(start + 1)
            inside = text[start + 2 : self.at - 1]
            if inside.startswith("(") and inside.endswith(")"):
                return [Piece("sum", inside[1:-1], quoted)]
            return _printed_text(inside, quoted) or [Piece("output", inside, quoted)]
        if text.startswith("${", start):
            depth, deepest = 0, 0
            for brace in (_BRACE_IN_QUOTES if quoted else _BRACE).finditer(text, start):
                depth += {"${": 1, "}": -1}.get(brace[0], 0)
                deepest = max(deepest, depth)
                if not depth:
                    break
            else:
                raise self._unclosed(start)
            self.at = brace.end()
            piece = _braced(text[start + 2 : self.at - 1], quoted) if deepest <= _DEEPEST else None
            return [piece or Piece("output", text[start : self.at], quoted)]
        if text.startswith('$"', start) and not quoted:
            self.at += 1
            return []
        if (escaped := _ESCAPED_TEXT.match(text, start)) and not quoted:
            self.at = escaped.end()
            plain = _ESCAPE.sub(_unescaped, escaped[1])
            return [Piece("output" if "\0" in plain else "text", plain.replace("\0", ""), quoted=True)]
        if name := _NAME.match(text, start + 1):
            self.at = name.end()
            return [Piece("name", name[0], quoted)]
        self.at += 1
        return [Piece("text", "$", quoted)]


def _unescaped(found: re.Match[str]) -> str:
    """Return the character of an escape in `$'…'`; NUL if it cannot be in text."""
    octal, byte, code, long_code, letter = found.groups()
    if letter:
        return _LETTERS.get(letter, letter if letter in "\\'\"?" else found[0])
    number = int(octal, 8) & 255 if octal else int(byte or code or long_code, 16)
    is_text = number < 128 or (not (octal or byte) and (number < 0xD800 or 0xE001 < number < 0x110000))
    return chr(number) if is_text else "\0"


def _braced(inside: str, quoted: bool) -> Piece | None:
    """Parse the inside of `${…}`; None if its form is not supported."""
    if counted := _COUNTED.fullmatch(inside):
        return Piece("count", counted[1], quoted)
    if sliced := _SLICED.fullmatch(inside):
        return Piece("name", sliced[1] or sliced[2], quoted, None, f"{sliced[3]}:{sliced[4] or ''}")
    if found := _BRACED.fullmatch(inside):
        return Piece("name", found[1], quoted, found[4] if found[3] in ("-", "=") else None, found[2] or "")
    return None


def _printed_text(command: str, quoted: bool) -> list[Piece]:
    """Return the output of `cat <<END` or `echo WORDS`, or the program's name for `which PROGRAM`; [] if unknown."""
    if program := _WHICH.fullmatch(command):
        return [Piece("text", program[1], quoted)]
    if not re.match(r"\s*(?:cat\s*<<|echo\s+[^-\s])", command) or command.count("<<") > 1:
        return []
    try:
        first, *more = commands(command)
    except (UnreadScriptError, ValueError):
        return []
    if first.words[0].source == "echo" and not (more or first.writes or "\\" in command or _GLOB.search(command)):
        words = [(Piece("text", " "), *word.pieces) for word in first.words[1:]]
        return [piece._replace(quoted=quoted) for word in words for piece in word][1:]
    if more or len(first.words) > 1 or first.text is None:
        return []
    *pieces, last = [piece._replace(quoted=quoted) for piece in first.text.pieces]
    return [*pieces, last._replace(text=last.text.rstrip("\n"))]


def _text_of(text: str, *, plain: bool) -> Word:
    """Return a here-document as a word; nothing is expanded if its delimiter was quoted (`plain`)."""
    if plain:
        return Word(text, (Piece("text", text, quoted=True),))
    # It is expanded like a word in double quotes, except that double quotes inside it are literal.
    quoted = re.sub(r'(\\*)"', lambda found: f'{found[1]}{chr(92) * (len(found[1]) % 2)}{chr(92)}"', text)
    try:
        return _Scanner(f'"{quoted}"')._word()
    except UnreadScriptError:
        return Word(text, (Piece("output", text, quoted=True),))


def commands(text: str) -> Iterator[SimpleCommand]:
    """Yield the simple commands of a script in order; keywords such as `if` and `do` are words of the next command.

    Raises UnreadScriptError after it has yielded the commands before the error.
    """
    return _Scanner(text).commands()


def _put(known: dict[str, _T], name: str, value: _T | None) -> None:
    known.pop(name, None)
    if value is not None:
        known[name] = value


class State(NamedTuple):
    """Everything known about a name at one point of the script."""

    name: str
    value: str | None
    assigned: str | None
    array: tuple[str, ...] | None
    why: str | None
    default: str | None
    in_doubt: bool | None


@dataclass
class Variables:
    """What is known about the variables of a script at the position that was read so far."""

    values: dict[str, str]
    defaults: dict[str, str] = field(default_factory=dict)
    """Unknown name → its value if the environment does not set it."""
    assigned: dict[str, str] = field(default_factory=dict)
    """Name → its assignment, as written in the script."""
    why: dict[str, str] = field(default_factory=dict)
    """Unknown name that does not come from the environment → the reason."""
    in_doubt: dict[str, bool] = field(default_factory=dict)
    """Unknown names that the script may set, so that a default is a guess → whether that is an earlier value."""
    parts: dict[str, frozenset[str]] = field(default_factory=dict)
    """Name → the names in its value."""
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name → the words of an array."""
    size: int = 0
    """Characters of all values that were inserted."""
    printed: dict[str, str] = field(default_factory=dict)
    """Command whose output is used → the name given to that output."""
    divided: set[str] = field(default_factory=set)
    """Unknown names used outside quotes, whose values a shell splits into words."""
    marks: int = 0
    """Number of open marks; see `mark`."""
    before: list[State] = field(default_factory=list)
    """Previous states of names that were set since the first open mark."""

    exported: Counter[str] = field(default_factory=lambda: Counter(_INHERITED))
    """Name → how often it is exported."""
    exports_all: bool = False
    """Whether `set -a` exports every variable that is set."""

    def exports(self, name: str) -> bool:
        """Whether an assignment to a name changes the environment of programs."""
        return self.exports_all or self.exported[name] > 0

    def has_room(self, characters: int) -> bool:
        """Count characters to be inserted; return whether the limit permits them."""
        self.size += characters
        return self.size <= _LARGEST

    def mark(self) -> int:
        """Start recording changes, until `undo` or `release` gets the returned mark."""
        self.marks += 1
        return len(self.before)

    def undo(self, mark: int) -> list[str]:
        """Undo all changes since a mark; return the changed names."""
        self.marks -= 1
        names = [state.name for state in self.before[mark:]]
        while len(self.before) > mark:
            self.restore(self.before.pop())
        return names

    def release(self, mark: int, names: Sequence[str]) -> None:
        """Undo the changes to `names` since a mark, and keep all others."""
        self.marks -= 1
        for name in names:
            if first := next((state for state in self.before[mark:] if state.name == name), None):
                self.restore(first)
        if not self.marks:
            self.before.clear()

    def state(self, name: str) -> State:
        """Return what is known about a name."""
        known = (self.values.get(name), self.assigned.get(name), self.arrays.get(name), self.why.get(name))
        return State(name, *known, self.defaults.get(name), self.in_doubt.get(name))

    def restore(self, state: State) -> None:
        """Reset a name to an earlier state."""
        _put(self.values, state.name, state.value)
        _put(self.assigned, state.name, state.assigned)
        _put(self.arrays, state.name, state.array)
        _put(self.why, state.name, state.why)
        _put(self.defaults, state.name, state.default)
        _put(self.in_doubt, state.name, state.in_doubt)

    def assign(self, name: str, word: Word) -> None:
        """Record an assignment; `word` is its right-hand side."""
        self._remember(name)
        self.parts[name] = frozenset(piece.text for piece in word.pieces if piece.kind == "name")
        array = next((piece for piece in word.pieces if piece.kind == "array"), None)
        if array is not None:
            added = word.pieces[0].kind == "name"
            if not added:
                self.why.pop(name, None)
            self._assign_array(name, array.text, self.arrays.get(name, ()) if added else ())
        elif is_printed(word):
            counts = any(piece.kind == "output" and _COUNT_OF_GPUS.search(piece.text) for piece in word.pieces)
            self.forget(name, COUNTS_GPUS if counts else "it is computed when the job starts", may_stay=False)
        elif name in self.arrays and word.pieces[:1] == (Piece("name", name, quoted=True),):
            self.forget(name, "text is added to the first word of an array", may_stay=False)
        elif any(
            piece.kind == "name" and piece.text.isdigit() and piece.text not in self.values for piece in word.pieces
        ):
            self.forget(name, "it is an argument of the script", may_stay=False, is_set=False)
            one, *more = [piece for piece in word.pieces if piece.kind != "text" or piece.text]
            if one.default is not None and not more:
                self._take_default(name, one.default)
        else:
            value = self.text(word)
            if name in self.why and only_unknown(value) == name:
                return  # NAME=${NAME:-4} after a command that may set it
            self.arrays.pop(name, None)
            self.values[name], self.assigned[name] = value, f"{name}={word.source}"
            self.why.pop(name, None)
            self.in_doubt.pop(name, None)

    def _assign_array(self, name: str, text: str, before: tuple[str, ...]) -> None:
        """Record `NAME=(a b)`, or `NAME+=(c)`, which appends to the words in `before`."""
        try:
            words = [word for command in commands(text) for word in command.words]
        except UnreadScriptError as error:
            self.forget(name, str(error.args[1]), may_stay=False)
            return
        if name in self.why or any(map(is_printed, words)):
            self.forget(name, "it is computed when the job starts", may_stay=False)
            return
        if any(word.source.startswith("[") for word in words):
            self.forget(name, "the words of an array have keys", may_stay=False)
            return
        self.parts[name] |= {piece.text for word in words for piece in word.pieces if piece.kind == "name"}
        fields = (*before, *(field for word in words for field in self.fields(word)))
        self.forget(name, f"more than {_MOST_WORDS:,} words", may_stay=False)
        if len(fields) <= _MOST_WORDS:
            self.why.pop(name)
            self.arrays[name] = fields

    def _remember(self, name: str) -> None:
        if self.marks:
            self.before.append(self.state(name))

    def forget(self, name: str, why: str, *, may_stay: bool = True, is_set: bool = True) -> None:
        """Record that a variable is unknown from here on, and why.

        Args:
            may_stay: Whether it may keep its value, which becomes its default.
            is_set: Whether the script may have set it, so that a later `${NAME:-default}` may not use its default.
        """
        self._remember(name)
        before = self.values.pop(name, "")
        self.assigned.pop(name, None)
        self.arrays.pop(name, None)
        if not may_stay:
            self.defaults.pop(name, None)
        kept = may_stay and bool(before) and not _UNKNOWN.search(before) and not re.search(r"[{}\n]", before)
        if kept:
            self.defaults[name] = before
        kept = kept or (may_stay and self.in_doubt.get(name, False))
        _put(self.in_doubt, name, kept if is_set else None)
        self.why[name] = why

    def give(self, arguments: Sequence[str] | None) -> None:
        """Set the positional parameters, as for a function call; None if they are unknown."""
        for number in range(len(self.arrays.pop("@", ()))):
            self.values.pop(str(number + 1), None)
        self.size += len(arguments or ())
        if arguments is not None and self.size <= _LARGEST:
            self.values |= {str(number): value for number, value in enumerate(arguments, 1)}
            self.arrays["@"] = tuple(arguments)

    def text(self, word: Word) -> str:
        """Return a word's value without splitting it."""
        return "".join(self._of(piece) for piece in word.pieces)

    def fields(self, word: Word) -> list[str]:
        """Return the words that a shell splits a word's value into."""
        found, current = list[str](), None
        for piece in word.pieces:
            if piece.kind == "name" and piece.text in self.arrays:
                words = self._words(piece)
                self.size += sum(len(word) + 1 for word in words)
                if self.size <= _LARGEST:
                    first, *rest = words or ("",)
                    *whole, last = [f"{current or ''}{first}", *rest]
                    found, current = [*found, *whole], last or current
                    continue
            value = self._of(piece)
            self.divided.update(() if piece.quoted else _UNKNOWN.findall(value))
            if piece.quoted or piece.kind == "text":
                current = (current or "") + value
                continue
            first, *rest = re.split(r"\s+", value)
            current = (current or "") + first if first else current
            for each in rest:
                found += [] if current is None else [current]
                current = each or None
        return found if current is None else [*found, current]

    def _words(self, piece: Piece) -> tuple[str, ...]:
        """Return the words of an array that a piece selects."""
        words = self.arrays[piece.text]
        if ":" in piece.number:
            start, _, length = piece.number.partition(":")
            begin = max(0, int(start) - (piece.text in ("@", "*")))  # $1 is the first
            return words[begin : begin + int(length) if length else None]
        if piece.number in ("@", "*") or piece.text in ("@", "*"):
            return words
        at = int(piece.number or 0)
        return words[at : at + 1]

    def shown(self, text: str) -> str:
        """Return a value for the profile, with `${var:NAME}` references for unknown names."""
        text = re.sub(r"\$\{(?=(?:var|env|file|cmd):)", "$ {", text)

        def reference(found: re.Match[str]) -> str:
            default = self.defaults.get(found[1])
            name = variable_name(found[1])
            return f"${{var:{name}}}" if default is None else f"${{var:{name}={default}}}"

        return _UNKNOWN.sub(reference, text)

    def settled(self, text: str) -> str:
        """Return a value in which unknown names are replaced by their defaults, if they have any."""
        return _UNKNOWN.sub(lambda found: self.defaults.get(found[1], found[0]), text)

    def _of(self, piece: Piece) -> str:
        name = piece.text
        if piece.kind == "text":
            return name
        if piece.kind == "sum":
            return self._sum(name)
        if piece.kind == "count" and name in self.arrays:
            return str(len(self.arrays[name]))
        is_array = name in self.arrays
        whole = piece.number in ("", "0", "@", "*") or name in ("@", "*")
        if piece.kind in ("output", "array", "count") or not (whole or is_array):
            name = f"{piece.kind} {name}" if piece.kind == "count" else f"{name}{piece.number}"
            why = COUNTS_GPUS if _COUNT_OF_GPUS.search(name) else "a command prints it"
            return self._printed_as(name, "its shell computes it" if name.startswith("${") else why)
        if is_array:
            words = self._words(piece)
            self.size += sum(map(len, words))
            return " ".join(words) if self.size <= _LARGEST else self._unknown(name, "it is too long")
        if name in self.values and (self.values[name] or piece.default is None):
            self.size += len(self.values[name])
            return self.values[name] if self.size <= _LARGEST else self._unknown(name, "it is too long")
        known_as = name if name.isidentifier() else "@" if name in "@*" else f"ARG{name}" if name.isdigit() else "VALUE"
        if piece.default is not None and name not in self.values:
            self._take_default(known_as, piece.default)
        if known_as != name:
            return self._unknown(known_as, "an argument or shell variable of the script")
        if name.startswith("SLURM"):
            self.why[name] = "Slurm sets it"
        return f"{_OPEN}{name}{_CLOSE}"

    def _take_default(self, name: str, written: str) -> None:
        """Record the default of a name from `${NAME:-written}`, unless it may still have an earlier value."""
        if self.in_doubt.get(name):
            return
        plain = written[:1] == '"' or re.fullmatch("'[^']*'", written)
        default = self.text(_Scanner(written if plain else f'"{written}"')._word())
        if not _UNKNOWN.search(default) and not re.search(r"[{}\n]", default):
            self.defaults[name] = default

    def _unknown(self, name: str, why: str) -> str:
        self.why[name] = why
        return f"{_OPEN}{name}{_CLOSE}"

    def _printed_as(self, what: str, why: str) -> str:
        number = len(self.printed) + 1
        return self._unknown(self.printed.setdefault(what, f"VALUE{number}" if number > 1 else "VALUE"), why)

    def _sum(self, text: str) -> str:
        found = _SUM.fullmatch(re.sub(r"[\s${}]", "", text))
        numbers = [self.values.get(one or "0", one or "0") for one in (found[1], found[3])] if found else []
        if found is None or not all(re.fullmatch(r"0[0-7]{0,9}|[1-9][0-9]{0,8}", number) for number in numbers):
            return self._printed_as(f"sum {text}", "it is computed when the job starts")
        one, other = (int(number, 8 if number[0] == "0" else 10) for number in numbers)
        results: Mapping[str, int] = {"": one, "*": one * other, "+": one + other, "-": one - other}
        return str(one // other if found[2] == "/" and other else results.get(found[2] or "", 0))


_PRINTS = re.compile(r"%([%sb])|\\([nt\\\"'])")
_ESCAPED = {"n": "\n", "t": "\t"}


def formatted(form: str, given: Sequence[str]) -> str | None:
    """Return what `printf` prints for string arguments; None for other conversions or if it is too long."""
    rest = list(given)
    if re.search(r"[%\\]", _PRINTS.sub("", form)) or len(form) * (len(rest) + 1) > _LARGEST:
        return None

    def part(found: re.Match[str]) -> str:
        if found[2]:
            return _ESCAPED.get(found[2], found[2])
        return "%" if found[1] == "%" else rest.pop(0) if rest else ""

    parts = [_PRINTS.sub(part, form)]
    while rest and len(rest) < len(given):
        parts.append(_PRINTS.sub(part, form))
    return "".join(parts)


def is_printed(word: Word) -> bool:
    """Whether a word consists only of a command's output."""
    kinds = [piece.kind for piece in word.pieces if piece.kind != "text" or piece.text]
    return kinds == ["output"]


def only_unknown(text: str) -> str:
    """Return the name if a text is exactly one unknown value (`@` is all arguments), or ""."""
    found = _UNKNOWN.fullmatch(text)
    return found[1] if found else ""


def at_home(path: str) -> str:
    """Replace a leading `$HOME` of a path by `~`."""
    return re.sub(f"^{_OPEN}HOME{_CLOSE}(?=/|$)", "~", path)


def variable_name(name: str) -> str:
    """Return the name of the profile's variable for an unknown name."""
    return "ARGS" if name == "@" else name


def as_written(text: str) -> str:
    """Return a text with shell references `${NAME}` for unknown names."""
    return _UNKNOWN.sub(r"${\1}", text)


def unknown_names(text: str) -> list[str]:
    """Return the unknown names in a value."""
    return _UNKNOWN.findall(text)


def without_marks(text: str) -> str:
    """Remove from a script the characters that mark unknown names here."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")
