"""What a host reports for `disttui check` beyond its probe. Sizes are in bytes."""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict


class FileSystem(TypedDict):
    """The file system that a path is on or would be created on."""

    path: str
    kind: str
    """The type as in mount(8), such as `nfs4`; "" if unknown."""
    free: int
    total: int
    inodes_free: Optional[int]
    """None if the file system has no fixed number of inodes."""


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
    """Values from `nvidia-smi -q -x`; None or empty if the card or the driver does not report them."""

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
    """PCIe lanes."""
    power_limit: Optional[float]
    power_default: Optional[float]
    """Watts."""
    mig: bool
    memory_used: int
    memory_seen: int
    """Bytes used by processes that nvidia-smi lists."""


class Inspected(TypedDict):
    shm: Optional[FileSystem]
    rooms: List[FileSystem]
    nofile: Optional[int]
    """Open files that a process may have; None if unlimited."""
    nofile_most: Optional[int]
    """The limit to which a process may raise it."""
    memlock: Optional[int]
    nproc: Optional[int]
    processes: int
    """This user's processes, including threads."""
    tasks_left: Optional[int]
    """Tasks that the control group still allows; None if unlimited."""
    governor: str
    throttled: Optional[float]
    """Fraction of the control group's CPU periods in which it was throttled, 0 to 1."""
    interfaces: List[Interface]
    fabric: List[FabricPort]
    variables: Dict[str, str]
    """The login's variables that change how torch communicates or computes."""
    gpus: List[GpuHealth]
    problems: List[str]


class InspectRequest(TypedDict, total=False):
    folders: List[str]
    gpus: bool


class ListenRequest(TypedDict):
    key: str
    """Hexadecimal key that proves to the viewer that a connection reached this host and no other."""
    ports: List[int]
    """A range of ports: its first free one is opened, and one chosen by the kernel."""
    seconds: float


class Listening(TypedDict):
    """The only event of `listen`: ports that are open on all addresses."""

    fixed: Optional[int]
    """A port in the range; None if all are taken."""
    free: int


class DialTarget(TypedDict):
    address: str
    port: int


class DialRequest(TypedDict):
    targets: List[DialTarget]
    nonce: str
    seconds: float


class Dialled(TypedDict):
    """The result for the target at the same position in the list."""

    ms: Optional[float]
    """Milliseconds from the SYN to the accepted connection; None if not connected."""
    proof: str
    """The answer: HMAC-SHA256 of the nonce under the key of the host that was reached."""
    error: str


class DialAnswer(TypedDict):
    dialled: List[Dialled]
