"""A host as it is typed on a command line."""

from __future__ import annotations

from pydantic import ValidationError

from runner.errors import InputError
from runner.profile.problems import printable, quoted
from runner.profile.sections import Host


def parse_host(text: str) -> Host:
    """The host that an ssh alias, `user@host:port` or `local` means, named by its address. Raises InputError."""
    try:
        host = Host(host=text)
    except ValidationError as error:
        flaw = error.errors()[0]["ctx"]
        cure = str(flaw["expected"]).replace("expected", "give", 1)
        raise InputError(
            printable(f"{quoted(text)} is no host: {flaw['what']}"), f"{cure[:1].upper()}{cure[1:]}."
        ) from None
    return host.model_copy(update={"name": host.label()})
