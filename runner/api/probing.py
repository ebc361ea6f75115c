"""Probes hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError
from disttui.runner.hosts.facts import HostFacts, facts_of
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import own_python, probe_request, side_by_side
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host, parse_host
from disttui.runner.protocol.requests import ProbeRequest


class Probed(NamedTuple):
    """A host with its facts, or the error."""

    host: str
    found: HostFacts | DisttuiError


class Asked(NamedTuple):
    """What a profile needs on one of its hosts."""

    profile: Profile
    node: int


def facts_over(link: Link, host: Host, asked: Asked | None = None) -> HostFacts:
    """Probe a host over an open link. Raises HostError.

    Args:
        asked: Also search for what a profile needs.
    """
    request = probe_request(asked.profile, asked.node) if asked else ProbeRequest(python=host.python)
    return facts_of(host.name, link.request("probe", **request))


def probe(viewer: Viewer, hosts: Sequence[str]) -> list[Probed]:
    """Probe hosts concurrently: cores, memory, GPUs, network, torch.

    Args:
        hosts: ssh aliases, user@host:port, or `local`; one that is named twice is probed once.

    Raises:
        InputError: A name is not a host.
    """

    def one(host: Host) -> Probed:
        try:
            return Probed(host.name, facts_of(host.name, viewer.ask(host, "probe", python=host.python)))
        except DisttuiError as error:
            return Probed(host.name, error)

    return side_by_side(one, hosts_of(hosts))


def hosts_of(names: Sequence[str]) -> list[Host]:
    """The hosts of names, each once, with the interpreter that a run uses. Raises InputError."""
    hosts = [parse_host(name) for name in dict.fromkeys(names)]
    return [host.model_copy(update=own_python(host)) for host in hosts]
