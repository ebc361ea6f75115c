"""One connector for every way to a host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from runner.address import Address
from runner.transport.base import Connection, Prompts
from runner.transport.local import LocalConnection

if TYPE_CHECKING:
    from runner.transport.ssh import SshConnector


class HostConnector:
    """Reaches `local` as this machine and everything else by SSH, which is imported when the first host needs it.

    Args:
        config_file: As ssh's -F, None: the user's and the system's configuration.
        prompts: Asks for passphrases, passwords and unknown host keys.
        accept_new: Trust unknown host keys without asking (never changed ones).
    """

    def __init__(self, config_file: str | None, prompts: Prompts, accept_new: bool = False) -> None:
        self._config_file = config_file
        self._prompts = prompts
        self._accept_new = accept_new
        self._lock = threading.Lock()
        self._ssh: SshConnector | None = None
        self._locals: list[LocalConnection] = []

    def connect(self, address: Address) -> Connection:
        if not address.is_local:
            return self._by_ssh().connect(address)
        connection = LocalConnection(address.host)
        self._locals.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._locals:
            connection.close()
        if self._ssh is not None:
            self._ssh.close()

    def _by_ssh(self) -> SshConnector:
        with self._lock:
            if self._ssh is None:
                from runner.transport.ssh import SshConnector  # noqa: PLC0415 - costs 0.1 s

                self._ssh = SshConnector(self._config_file, self._prompts, self._accept_new)
            return self._ssh
