"""What a profile has run and which secrets it sends, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runner.profile import Profile
from runner.profile.effects import JOB, Effect, Secret, effects, secrets
from runner.profile.problems import printable
from runner.profile.references import Reference
from runner.text.quoting import quote

_MOST_NAMES = 8
_LINES = ("python", "activate", "on_end.webhook")
"""Keys with one word that is not a command line."""
_WHEN = {
    "plan": ", already for a plan",
    "start": "",
    "resume": ", from the second attempt on",
    "end": ", when the run ends",
    "pull": ", copied to this machine by `disttui pull`",
}


def names(where: Sequence[str]) -> str:
    """`node1, node2 and 30 more`."""
    more = len(where) - _MOST_NAMES
    return ", ".join(where) if more <= 0 else f"{', '.join(where[:_MOST_NAMES])} and {more} more"


def _all_names(where: Sequence[str], profile: Profile) -> str:
    """`node1, node2`, or `all 32 hosts` of a profile; of some of them none is left out, the user decides by them."""
    if len(where) > _MOST_NAMES and len(where) == len(profile.hosts):  # each has a name of its own
        return f"all {len(profile.hosts)} hosts"
    return ", ".join(where)


def command_text(effect: Effect) -> str:
    """What is run, as it would be typed, in one line; what cannot be seen is written as its escape."""
    line = effect.key in _LINES or effect.key.startswith("env.")
    return printable(effect.words[0]) if line else shown_words(effect.words)


def shown_words(words: Iterable[str]) -> str:
    """The words of a command as a person reads them: one with characters that cannot be seen has their escapes."""
    return " ".join(quote(word) if word.isprintable() else repr(word) for word in words)


def effect_lines(profile: Profile, *, job: bool = True) -> Iterator[tuple[str, str]]:
    """(the key, what happens where) of everything, as safe text.

    Args:
        job: Whether to include the job itself.
    """
    for effect in effects(profile):
        if effect.key in JOB and not job:
            continue
        yield effect.key, f"on {_all_names(effect.where, profile)}{_WHEN[effect.when]}: {command_text(effect)}"
    for secret in secrets(profile):
        yield printable(str(Reference(secret.kind, secret.name))), secret_text(secret, profile)


def secret_text(secret: Secret, profile: Profile) -> str:
    """Which hosts get a secret, and in which variables."""
    return printable(f"to {_all_names(secret.where, profile)}, as {', '.join(secret.variables)}")


def logins(profile: Profile) -> list[str]:
    """Each host with the login that the profile has for it, in their order."""
    found = [host.name if host.name == host.label() else f"{host.name} ({host.label()})" for host in profile.hosts]
    return list(map(printable, found))


def foreign_lines(profile: Profile) -> Iterator[tuple[str, str]]:
    """The same of a profile that came from a host, with the logins and the variables that it has for its hosts."""
    yield "hosts", ", ".join(logins(profile))
    yield from effect_lines(profile)
    if variables := profile.variables:
        yield "env", printable(", ".join(variables))
