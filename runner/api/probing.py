"""What hosts have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runner.api.viewer import Viewer
from runner.errors import DisttuiError
from runner.hosts.facts import HostFacts, facts_of
from runner.hosts.survey import side_by_side
from runner.profile import Host, parse_host

_PORTS = (29500, 29599)


class Probed(NamedTuple):
    """A host, and what it has, or why that is not known."""

    host: str
    found: HostFacts | DisttuiError


def probe(viewer: Viewer, hosts: Sequence[str]) -> list[Probed]:
    """Reach hosts side by side and find out what each has: cores, memory, GPUs, network, torch.

    Args:
        hosts: ssh aliases, user@host:port, or `local`.

    Raises:
        InputError: A name is none.
    """

    def one(host: Host) -> Probed:
        try:
            link = viewer.open_link(host)
        except DisttuiError as error:
            return Probed(host.name, error)
        try:
            return Probed(host.name, facts_of(host.name, link.request("probe", ports=list(_PORTS))))
        except DisttuiError as error:
            return Probed(host.name, error)
        finally:
            link.close()

    return side_by_side(one, [parse_host(name) for name in hosts])
