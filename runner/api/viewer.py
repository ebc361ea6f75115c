"""The viewer: the caller's environment, and its connections to hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttui.runner.api.questions import Questions, Unattended
from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.survey import open_link
from disttui.runner.profile.resolve import SecretValues
from disttui.runner.transport import Connector

if TYPE_CHECKING:
    from disttui.runner.hosts.link import Link
    from disttui.runner.profile.sections import Host
    from disttui.runner.protocol.requests import Op
    from disttui.runner.runs.registry import KnownRun
    from disttui.runner.runs.remote import Reached
    from disttui.runner.transport.sandbox import Sandbox
    from disttui.runner.user.config import Settings


_GONE = "a sandbox host ends with its command"


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
        self.settings: Settings | None = None
        """Replaces the user's config; None: the user's own."""
        self._accept_new = accept_new_host_keys
        self._runs_bring_theirs = runs_bring_theirs
        self._made: dict[str | None, Connector] = {}
        self._lock = threading.Lock()

    @classmethod
    def in_sandbox(cls, hosts: Sequence[str], environ: Mapping[str, str] | None = None) -> Viewer:
        """A viewer whose hosts are simulated on this machine until it is closed.

        Args:
            hosts: Their names, as in the profile's `hosts`.

        Raises:
            InputError: The temporary folder cannot be written.
        """
        from disttui.runner.transport.sandbox import Sandbox

        made = cls(environ)
        try:
            made.sandbox = Sandbox(hosts)
        except OSError as error:
            what = f"cannot create the sandbox: {error.strerror or error}"
            raise InputError(what, "Free space there, or set TMPDIR.", place=str(error.filename or "")) from None
        made.ssh_config = str(made.sandbox.config)
        return made

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def connector(self, of_run: str | None = None) -> Connector:
        """The connector to hosts, made when first needed. Thread-safe.

        Args:
            of_run: The ssh configuration that a run was started with.
        """
        if self.sandbox is not None:
            return self.sandbox
        from disttui.runner.transport.connector import HostConnector
        from disttui.runner.user.config import load_settings

        config = self.config(of_run)
        with self._lock:
            if config not in self._made:
                transport = (self.settings or load_settings(self.environ)).transport
                self._made[config] = HostConnector(config, self.questions, self._accept_new, transport)
            return self._made[config]

    def open_link(self, host: Host, of_run: str | None = None, *, any_python: bool = False) -> Link:
        """Connect to one host and start its node program, as `survey.open_link`. Raises HostError."""
        return open_link(host, self.connector(of_run), any_python=any_python)

    def ask(
        self, host: Host, op: Op, of_run: str | None = None, /, *, timeout: float | None = 60.0, **arguments: Any
    ) -> Any:
        """The answer of one host to one request, over a separate connection. Raises HostError."""
        link = self.open_link(host, of_run, any_python=True)
        try:
            return link.request(op, timeout=timeout, **arguments)
        finally:
            link.close()

    def link_to(self, run: KnownRun, node: int) -> Link:
        """Reach one host of a run. Raises HostError."""
        if run.gone:
            raise HostError(run.hosts[node].name, _GONE)
        return self.open_link(run.hosts[node].as_host(), run.ssh_config, any_python=True)

    def reach(self, run: KnownRun, nodes: Sequence[int] | None = None, limit: float | None = None) -> Reached:
        """Connect to the hosts of a run, or to some, concurrently; one slower than `limit` seconds is an error.

        Args:
            limit: None: 30 s.
        """
        from disttui.runner.runs.remote import REACH, Reached, reach_hosts

        chosen = range(len(run.hosts)) if nodes is None else nodes
        if run.gone:
            return Reached(errors={node: HostError(run.hosts[node].name, _GONE) for node in chosen})
        hosts = {node: run.hosts[node] for node in chosen}
        return reach_hosts(hosts, self.connector(run.ssh_config), REACH if limit is None else limit)

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
        # If the run's configuration file no longer exists, use the user's own.
        return self.ssh_config or (of_run if of_run and os.path.isfile(of_run) else None)  # noqa: PTH113 - never raises
