"""A cluster for tests: hosts as namespaces of this machine, each with its own real sshd."""

from tests.cluster.cluster import Cluster, unavailable
from tests.cluster.host import ClusterHost

__all__ = ["Cluster", "ClusterHost", "unavailable"]
