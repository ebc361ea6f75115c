"""What a host reports for `disttui check`, beyond its probe. Sizes are in bytes."""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict


class FileSystem(TypedDict):
    """A file system, asked for a path that is on it or would be made on it."""

    path: str
    kind: str
    """As mount(8) names it, such as `nfs4`; empty: unknown."""
    free: int
    total: int
    inodes_free: Optional[int]
    """None where the file system has no fixed number of them."""


class Interface(TypedDict):
    name: str
    mtu: int


class FabricPort(TypedDict):
    """A port of an InfiniBand or RoCE device, from /sys/class/infiniband."""

    device: str
    port: int
    state: str
    """Such as `ACTIVE` or `DOWN`."""
    link: str
    """`InfiniBand` or `Ethernet`."""
    rate: str


class GpuHealth(TypedDict):
    """Of `nvidia-smi -q -x`; None or empty: the card or the driver does not tell."""

    index: int
    name: str
    uncorrected: Optional[int]
    """Memory errors that ECC could not correct since the driver was loaded."""
    remap_pending: Optional[bool]
    remap_failed: Optional[bool]
    slowdown: List[str]
    """Active reasons for reduced clocks that show a fault: heat, power supply."""
    width: Optional[int]
    width_max: Optional[int]
    """Lanes of PCIe."""
    power_limit: Optional[float]
    power_default: Optional[float]
    """Watts."""
    mig: bool
    memory_used: int
    memory_seen: int
    """Held by processes that nvidia-smi lists."""


class Inspected(TypedDict):
    shm: Optional[FileSystem]
    rooms: List[FileSystem]
    nofile: Optional[int]
    """Open files that a process may have; None: unlimited."""
    nofile_most: Optional[int]
    """What a process may raise it to."""
    memlock: Optional[int]
    nproc: Optional[int]
    processes: int
    """Of this user, threads included."""
    tasks_left: Optional[int]
    """What the control group still allows; None: unlimited."""
    governor: str
    throttled: Optional[float]
    """Part of the control group's CPU periods in which it was throttled, 0 to 1."""
    interfaces: List[Interface]
    fabric: List[FabricPort]
    variables: Dict[str, str]
    """Those of the login that change how torch communicates or computes."""
    gpus: List[GpuHealth]
    problems: List[str]


class InspectRequest(TypedDict, total=False):
    folders: List[str]
    gpus: bool


class ListenRequest(TypedDict):
    key: str
    """Hexadecimal; proves to the viewer that a connection reached this host and no other."""
    ports: List[int]
    """The first free one of this range is opened, and one that the kernel chooses."""
    seconds: float


class Listening(TypedDict):
    """The one event of `listen`: ports that are open on all addresses."""

    fixed: Optional[int]
    """Of the range; None: all are taken."""
    free: int


class DialTarget(TypedDict):
    address: str
    port: int


class DialRequest(TypedDict):
    targets: List[DialTarget]
    nonce: str
    seconds: float


class Dialled(TypedDict):
    """The result for the target of the same place in the list."""

    ms: Optional[float]
    """From the SYN to the accepted connection; None: not connected."""
    proof: str
    """What answered: HMAC-SHA256 of the nonce under the key of the host that was reached."""
    error: str


class DialAnswer(TypedDict):
    dialled: List[Dialled]
