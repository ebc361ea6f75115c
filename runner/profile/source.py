"""A profile's file as text."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import NamedTuple

from runner import private
from runner.errors import InputError
from runner.profile.nodes import MAX_SIZE
from runner.profile.problems import ProfileErrors, ProfileProblem, printable


class ProfileText(NamedTuple):
    """A file as it was read."""

    text: str
    status: os.stat_result
    """Of the file that `text` was read from, even if another file has taken its path since."""


class Source(NamedTuple):
    """A file that a profile is made of."""

    path: str
    text: str
    status: os.stat_result
    """As of `ProfileText`."""


def read(path: Path) -> ProfileText:
    """Read a file.

    Raises:
        InputError: It cannot be read.
        ProfileErrors: It is no text.
    """
    name = printable(str(path))
    try:
        # One byte more than allowed shows that there is more, even of an endless device.
        data, status = private.read(path, 4 * MAX_SIZE + 1, devices=True)
    except private.NoRegularFileError:
        raise InputError(
            "this is no regular file, and a profile is read more than once", "Save it in a file.", place=name
        ) from None
    except FileNotFoundError:
        raise InputError("there is no such file", place=name) from None
    except IsADirectoryError:
        raise InputError("this is a folder", "Name a profile in it.", place=name) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=name) from None
    try:
        return ProfileText(data.decode("utf-8"), status)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        if "\0" in before or len(data) > 4 * MAX_SIZE:
            return ProfileText(before, status)
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "UTF-16 text" if wide else f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        expected = "save it as UTF-8" if wide else "expected a YAML file"
        raise ProfileErrors([ProfileProblem(line, column, what, expected, str(path))]) from None
