"""Translates a plan into POSIX shell commands that start the same run without disttui. No I/O."""

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
    """Return one host's command for a POSIX shell; `activate` is a line of its own, run in the job's folder.

    References are exported instead of passed to `env`, since any user of the host can see a process's arguments.
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
    """Return a variable's value as a shell word; a reference becomes `${NAME:?}`, which fails if NAME is not set.

    A reference to a file or command of the machine that disttui runs on becomes the shell variable `name`, because
    the script runs on another machine. Further ones in the same text become `name`_2, `name`_3 and so on.
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
    """Return NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, found from the route to the master; empty on one machine.

    Without them gloo listens on the address of the host's own name, often 127.0.1.1, and fails if it has none.

    Args:
        master: The master's address, as a shell word.
    """
    if len(plan.hosts) == 1 or master == quote(network.LOOPBACK):
        return {}
    # The route to an address of this host leads over lo, so the interface is found by the source address instead.
    source = f"$(ip -o route get {master} | sed -n 's/.* src \\([^ ]*\\).*/\\1/p')"
    found = f'"$(ip -o addr show to "{source}" | awk \'{{print $2; exit}}\')"'
    name = quote(host.interface) if host.interface else found
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}


def folder(path: str) -> str:
    """Quote a path for a shell, but leave a leading `~` or `~user` for the shell to expand."""
    found = _TILDE.match(path)
    if found is None:
        return quote(path)
    # The slash stays outside the quotes: a shell does not expand a tilde before a quoted slash.
    rest = path[found.end() + 1 :]
    return found[0] + path[found.end() : found.end() + 1] + (quote(rest) if rest else "")


def word(text: str, plan: Plan) -> str:
    """Quote a word of the job for a shell; a leading tilde of its script or program is left for the shell to expand."""
    kind, script, _ = plan.profile.job.target
    return folder(text) if kind in ("script", "command") and text == script else quote(text)


def outer(text: str, host: HostPlan) -> str:
    """Quote a word of the command around the launcher; the shell expands tildes in a container's paths."""
    if host.container is None:
        return quote(text)
    if _OPTION.match(text):
        return '"$HOME"'.join(quote(piece) if piece else "" for piece in _HOME.split(text))
    return folder(text) if text in (host.container["image"], host.workdir) else quote(text)


def _word(text: str, plan: Plan, host: HostPlan) -> str:
    if host.container and text in host.around:
        return outer(text, host)
    return folder(text) if text == host.python else word(text, plan)
