"""A plan as commands for a POSIX shell, which do the same without disttui. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.planning import network
from runner.planning.plan import HostPlan, Plan
from runner.profile.references import Reference, split
from runner.text import clean_lines
from runner.text.quoting import quote

_TILDE = re.compile(r"~[\w.-]*(?=/|\Z)")


def shell_command(plan: Plan, host: HostPlan) -> str:
    """One host's command for a POSIX shell, `activate` as its own line where the start runs it: in the job's folder.

    Secrets are exported by the shell itself: every user of the host can see the words of `env`.
    """
    env = {name: value(name, text) for name, text in host.env.items()}
    for name, text in _interface(plan, host).items():
        env.setdefault(name, text)
    exported = [f"export {name}={env.pop(name)} && " for name in host.env if name in host.references]
    words = ["env", *(f"{name}={text}" for name, text in env.items()), *(_word(word, host) for word in host.command)]
    then = f"\n{clean_lines(host.activate)}\n" if host.activate else " && "
    return f"cd {folder(host.workdir)}{then}{''.join(exported)}{' '.join(words)}"


def value(name: str, text: str) -> str:
    """A variable's value; a reference becomes the shell's own, which stops the command where it is not set.

    In place of a file or a command of the machine that disttui runs on, the shell's variable `name` is taken: the
    script runs on another one. A second such reference in one text is `name`_2, and so on.
    """
    known: dict[Reference, str] = {}
    words = []
    for piece in split(text):
        if isinstance(piece, str):
            words.append(quote(piece))
        elif piece.kind == "env":
            words.append(f'"${{{piece.name}:?}}"')
        else:
            first = known.setdefault(piece, name if not known else f"{name}_{len(known) + 1}")
            words.append(f'"${{{first}:?}}"')
    return "".join(words) or quote("")


def _interface(plan: Plan, host: HostPlan) -> Mapping[str, str]:
    """The interface variables that a start finds out on the host, as a shell can: from the route to the master.

    Without them gloo listens where the host's own name resolves to, often 127.0.1.1.
    """
    if len(plan.hosts) == 1 or plan.master == network.LOOPBACK:
        return {}
    found = quote(host.interface) if host.interface else ""
    name = found or f"\"$(ip -o route get {quote(plan.master)} | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')\""
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}


def folder(path: str) -> str:
    """A path for a shell, which itself puts a home folder in place of a leading tilde."""
    found = _TILDE.match(path)
    if found is None:
        return quote(path)
    # The slash stays out of the quotes: before a quoted one a shell leaves the tilde as it is.
    rest = path[found.end() + 1 :]
    return found[0] + path[found.end() : found.end() + 1] + (quote(rest) if rest else "")


def _word(word: str, host: HostPlan) -> str:
    return folder(word) if word == host.python else quote(word)
