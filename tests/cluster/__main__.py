"""`python -m tests.cluster [N]`: N hosts (2) on this machine to try things on by hand, until Ctrl-C; needs root."""

from __future__ import annotations

import signal
import sys

import yaml

from tests.cluster.cluster import Cluster, unavailable

_MOST = 200


def main(words: list[str]) -> int:
    """Make the hosts, say how to reach them, and wait for a signal; returns the exit code."""
    if len(words) > 1 or not all(word.isdecimal() and 1 <= int(word) <= _MOST for word in words):
        print(f"usage: python -m tests.cluster [N], with N hosts from 1 to {_MOST}", file=sys.stderr)
        return 2
    reason = unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 3
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    with Cluster(int(words[0]) if words else 2) as cluster:
        print(_text(cluster), flush=True)
        signal.pause()
    return 0


def _text(cluster: Cluster) -> str:
    names = [host.name for host in cluster.hosts]
    profile = cluster.shared / "trial.yaml"
    job = {"builtin": "bytegpt", "args": ["--steps", "2000"]}
    keys = {"disttui": 1, "name": "trial", "hosts": names, "num_processes": 1, "python": sys.executable, "job": job}
    profile.write_text(yaml.safe_dump(keys, sort_keys=False))
    return f"""\
{len(names)} hosts: {", ".join(f"{host.name} ({host.address})" for host in cluster.hosts)}
In another terminal:
    export DISTTUI_SSH_CONFIG={cluster.ssh_config}
    ssh -F "$DISTTUI_SSH_CONFIG" {names[0]}
    disttui probe {" ".join(names)}
    disttui run {profile}
All hosts see {cluster.shared} under the same path. Ctrl-C here ends the hosts and removes their files."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
