"""Sources of hosts: each gives named candidates and reports what it could not read. No host is contacted."""

from runner.hosts.discovery.candidate import Candidate, Discovered
from runner.hosts.discovery.places import find_all, read_file, usual_files
from runner.hosts.discovery.ssh_hosts import ssh_hosts
from runner.hosts.discovery.typed import typed_hosts

__all__ = ["Candidate", "Discovered", "find_all", "read_file", "ssh_hosts", "typed_hosts", "usual_files"]
