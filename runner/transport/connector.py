"""A connector that chooses the transport of each host."""

from __future__ import annotations

import threading
from collections.abc import Callable

from disttui.runner.address import Address
from disttui.runner.transport.base import Connector, HostConnection, NeedsSshError, Prompts
from disttui.runner.transport.local import LocalConnection


class HostConnector:
    """Connects to `local` without SSH and to all other addresses by SSH, which is imported when first needed.

    The `transport` of an address selects paramiko (`builtin`) or the ssh program (`ssh`). The ssh program is also used
    if paramiko cannot follow all settings, or shares no algorithm with the server.

    Args:
        config_file: As ssh's -F; None: the user's and the system's configuration.
        prompts: Asks for passphrases, passwords and unknown host keys.
        accept_new: Trust unknown host keys without asking (never changed ones).
        transport: Default for addresses without a transport.
    """

    def __init__(
        self, config_file: str | None, prompts: Prompts, accept_new: bool = False, transport: str = "builtin"
    ) -> None:
        self._config_file = config_file
        self._prompts = prompts
        self._accept_new = accept_new
        self._lock = threading.Lock()
        self._transport = transport
        self._made: dict[str, Connector] = {}
        self._need_ssh: set[Address] = set()
        self._locals: list[LocalConnection] = []

    def connect(self, address: Address) -> HostConnection:
        if not address.is_local:
            transport = address.transport or self._transport
            try:
                return self._by_ssh("ssh" if address in self._need_ssh else transport).connect(address)
            except NeedsSshError:
                self._need_ssh.add(address)  # so that paramiko is not tried again
                return self._by_ssh("ssh").connect(address)
        connection = LocalConnection(address.host)
        self._locals.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._locals:
            connection.close()
        for connector in self._made.values():
            connector.close()

    def _by_ssh(self, transport: str) -> Connector:
        with self._lock:
            if transport not in self._made:
                kind: Callable[[str | None, Prompts, bool], Connector]
                if transport == "ssh":
                    from disttui.runner.transport.system_ssh import SystemSshConnector as kind  # noqa: PLC0415, N813
                else:
                    from disttui.runner.transport.ssh import SshConnector as kind  # noqa: PLC0415, N813 - costs 0.1 s
                self._made[transport] = kind(self._config_file, self._prompts, self._accept_new)
            return self._made[transport]
