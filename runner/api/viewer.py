"""The viewer: the caller's environment, and its connections to hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from runner.api.questions import Questions, Unattended
from runner.errors import HostError
from runner.hosts.survey import open_link
from runner.profile.resolve import SecretValues
from runner.transport import Connector

if TYPE_CHECKING:
    from runner.hosts.link import Link
    from runner.profile import Host
    from runner.runs.registry import KnownRun
    from runner.runs.remote import Reached
    from runner.transport.sandbox import Sandbox


class Viewer:
    """The context of every function of this package. Close it, or use it as a context manager.

    Args:
        environ: The variables for `${env:NAME}` of profiles and for the folder of runs (XDG_DATA_HOME).
        questions: Answers questions while connecting; None: every answer is no.
        ssh_config: As ssh's -F; None: the user's own configuration.
        accept_new_host_keys: Trust unknown host keys without asking (never changed ones).
        runs_bring_theirs: Use the configuration that a run was started with, also where `ssh_config` is given.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        questions: Questions | None = None,
        *,
        ssh_config: str | None = None,
        accept_new_host_keys: bool = False,
        runs_bring_theirs: bool = False,
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.questions = questions or Unattended()
        self.ssh_config = str(Path(ssh_config).absolute()) if ssh_config else None
        self.secrets = SecretValues(self.environ)
        self.sandbox: Sandbox | None = None
        """The sandbox that simulates all hosts, if there is one."""
        self._accept_new = accept_new_host_keys
        self._runs_bring_theirs = runs_bring_theirs
        self._made: dict[str | None, Connector] = {}
        self._lock = threading.Lock()

    @classmethod
    def in_sandbox(cls, hosts: Sequence[str], environ: Mapping[str, str] | None = None) -> Viewer:
        """A viewer whose hosts are simulated on this machine until it is closed.

        Args:
            hosts: Their names, as in the profile's `hosts`.
        """
        from runner.transport.sandbox import Sandbox

        made = cls(environ)
        made.sandbox = Sandbox(hosts)
        made.ssh_config = str(made.sandbox.config)
        return made

    def __enter__(self) -> Viewer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connector(self, of_run: str | None = None) -> Connector:
        """The connector to hosts, made when it is first needed. Thread-safe.

        Args:
            of_run: The ssh configuration that a run was started with.
        """
        if self.sandbox is not None:
            return self.sandbox
        from runner.transport.connector import HostConnector

        config = self.config(of_run)
        with self._lock:
            if config not in self._made:
                self._made[config] = HostConnector(config, self.questions, self._accept_new)
            return self._made[config]

    def open_link(self, host: Host, of_run: str | None = None) -> Link:
        """Connect to one host and start its node program. Raises HostError."""
        return open_link(host, self.connector(of_run))

    def link_to(self, run: KnownRun, node: int) -> Link:
        """Reach one host of a run. Raises HostError."""
        if run.gone:
            raise HostError(run.hosts[node].name, "a host of a sandbox lives only as long as its command")
        return self.open_link(run.hosts[node].as_host(), run.ssh_config)

    def reach(
        self,
        run: KnownRun,
        nodes: Sequence[int] | None = None,
        limit: float | None = None,
        at_once: Callable[[int, Link], object] | None = None,
    ) -> Reached:
        """Connect to the hosts of a run, or to some, concurrently; one slower than `limit` seconds is an error.

        Args:
            limit: None: 30 s.
            at_once: Takes each link when it is open, while others are still being opened, from several threads.
        """
        from runner.runs.remote import REACH, reach

        return reach(run, self.connector(run.ssh_config), nodes, REACH if limit is None else limit, at_once)

    def close(self) -> None:
        """Close every connection, and end the sandbox."""
        for connector in self._made.values():
            connector.close()
        if self.sandbox is not None:
            self.sandbox.close()

    def config(self, of_run: str | None = None) -> str | None:
        """The ssh configuration for connecting to hosts, None: the user's own."""
        if self.sandbox is not None:
            return self.ssh_config
        if self._runs_bring_theirs:
            return of_run or self.ssh_config
        # The configuration file of a run may be gone: use the user's own then.
        return self.ssh_config or (of_run if of_run and os.path.isfile(of_run) else None)  # noqa: PTH113 - never raises
