"""A plan as commands for a POSIX shell, which do the same without disttui. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from disttui.runner.planning import network
from disttui.runner.planning.plan import HostPlan, Plan
from disttui.runner.profile.references import Reference, split
from disttui.runner.text import clean_lines, quote

_OPTION = re.compile(r"--(volume|bind|mount|workdir|pwd)=")
_HOME = re.compile(r"(?<=[=:])~(?=[/:]|\Z)")
_TILDE = re.compile(r"~[\w.-]*(?=/|\Z)")


def shell_command(plan: Plan, host: HostPlan) -> str:
    """One host's command for a POSIX shell, `activate` as its own line where the start runs it: in the job's folder.

    Secrets are exported by the shell itself: every user of the host can see the words of `env`.
    """
    env = {name: value(name, text) for name, text in host.env.items()}
    env = {**interface(plan, host, quote(plan.master)), **env}
    exported = [f"export {name}={env.pop(name)} && " for name in host.env if name in host.references]
    words = [
        "env",
        *(f"{name}={text}" for name, text in env.items()),
        *(_word(text, plan, host) for text in host.command),
    ]
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


def interface(plan: Plan, host: HostPlan, master: str) -> Mapping[str, str]:
    """The interface variables that a start finds out on the host, as a shell can: from the route to the master.

    Without them gloo listens where the host's own name resolves to, often 127.0.1.1, and fails where it does not.

    Args:
        master: The master's address, as a word of the shell.
    """
    if len(plan.hosts) == 1 or master == quote(network.LOOPBACK):
        return {}
    # The route to an own address is lo: it is the address that packets come from that tells the interface.
    source = f"$(ip -o route get {master} | sed -n 's/.* src \\([^ ]*\\).*/\\1/p')"
    found = f'"$(ip -o addr show to "{source}" | awk \'{{print $2; exit}}\')"'
    name = quote(host.interface) if host.interface else found
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}


def folder(path: str) -> str:
    """A path for a shell, which itself puts a home folder in place of a leading tilde."""
    found = _TILDE.match(path)
    if found is None:
        return quote(path)
    # The slash stays out of the quotes: before a quoted one a shell leaves the tilde as it is.
    rest = path[found.end() + 1 :]
    return found[0] + path[found.end() : found.end() + 1] + (quote(rest) if rest else "")


def word(text: str, plan: Plan) -> str:
    """A word of the job for a shell; a script or program at home is found there, as a start finds it."""
    kind, script, _ = plan.profile.job.target
    return folder(text) if kind in ("script", "command") and text == script else quote(text)


def outer(text: str, host: HostPlan) -> str:
    """A word of what the launcher runs in; the shell puts the home folder into a container's own."""
    if host.container is None:
        return quote(text)
    if _OPTION.match(text):
        return '"$HOME"'.join(quote(piece) if piece else "" for piece in _HOME.split(text))
    return folder(text) if text in (host.container["image"], host.workdir) else quote(text)


def _word(text: str, plan: Plan, host: HostPlan) -> str:
    if host.container and text in host.around:
        return outer(text, host)
    return folder(text) if text == host.python else word(text, plan)
