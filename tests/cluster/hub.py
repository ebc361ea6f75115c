"""The switch between the hosts: a bridge in a network namespace of its own, with a cable to this machine."""

from __future__ import annotations

import subprocess

from tests.cluster.slot import viewer_link

# A MAC address nobody has: frames to it are flooded and dropped, silently, as by a broken switch.
_NOBODY = "02:00:00:00:00:01"


def _card(name: str) -> str:
    """The MAC address of a host's interface: as on a real machine, it has the same one after a reboot."""
    return f"02:00:00:00:01:{int(name.removeprefix('node')):02x}"


def ip(*commands: str, within: int | None = None) -> None:
    """Run `ip` commands in the network namespace of process `within`, or of this machine."""
    enter = [] if within is None else ["nsenter", "-t", str(within), "-n", "--"]
    done = subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip failed: {done.stderr.strip()}")


class Hub:
    """The bridge of the subnet 10.77.`number`.0/24, and the cables in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        # cat holds the namespace open and ends with this process, as its standard input does.
        self._holder = subprocess.Popen(
            ["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.write(b"\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()
        link = viewer_link(number)
        ip(
            f"link add {link} type veth peer name viewer netns {self._holder.pid}",
            f"addr add 10.77.{number}.1/24 dev {link}",
            f"link set {link} up",
        )
        ip(
            "link add br0 type bridge mcast_snooping 0",
            "link set br0 up",
            "link set viewer master br0 up",
            within=self._holder.pid,
        )

    def plug(self, cables: dict[str, int]) -> None:
        """Connect the hosts (name: pid of their init), each by an interface `eth0`."""
        ip(
            *(
                f"link add {name} type veth peer name eth0 address {_card(name)} netns {pid}"
                for name, pid in cables.items()
            ),
            *(f"link set {name} master br0 up" for name in cables),
            within=self._holder.pid,
        )

    def unplug(self, name: str) -> None:
        """Take a host's cable away."""
        ip(f"link del {name}", within=self._holder.pid)

    def forward(self, name: str, on: bool) -> None:
        """Let the switch drop (or forward again) every frame from and to a host; its link stays up."""
        ip(f"link set {name} {'master br0' if on else 'nomaster'}", within=self._holder.pid)

    def close(self) -> None:
        """Remove the bridge and all its cables."""
        ip(f"link del {viewer_link(self.number)}")
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait()


def lose(pid: int, address: str, lost: bool) -> None:
    """Make the host of init `pid` send frames for `address` to nobody (or stop doing so)."""
    if lost:
        ip(f"neigh replace {address} lladdr {_NOBODY} nud permanent dev eth0", within=pid)
    else:
        ip(f"neigh del {address} dev eth0", within=pid)
