"""paramiko's transport with limits on what the server may send, and only the algorithms that the settings allow."""

from __future__ import annotations

import struct
import time
from typing import Any, ClassVar

from paramiko.channel import Channel
from paramiko.common import (
    CONNECTION_FAILED_CODE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_EXT_INFO,
    MSG_USERAUTH_INFO_REQUEST,
)
from paramiko.kex_curve25519 import KexCurve25519
from paramiko.message import Message
from paramiko.packet import Packetizer
from paramiko.ssh_exception import ChannelException, SSHException
from paramiko.transport import Transport

from disttui.runner.errors import HostError
from disttui.runner.transport.algorithms import CERTIFICATE, SHA1, blob_type, by_speed, key_type, plain, take
from disttui.runner.transport.ssh_config import SshTarget

PACKET_LIMIT = 256 * 1024
"""Most bytes of one packet, as in OpenSSH."""
STRANGER_LIMIT = 1024 * 1024
"""Most bytes that a peer may send before the login is complete."""
GREETING_LIMIT = 16 * 1024
"""Most bytes that a server may send before its SSH greeting."""
_QUESTIONS = 64
"""Most questions or extensions in one message; paramiko would loop over any number claimed, up to 2^32."""
_WINDOWS = 2
"""Most unread data of a channel, in windows; a server that follows the protocol never sends more than one."""


class GuardedPacketizer(Packetizer):
    """Bounds the size of packets and, until `trust` is called, the total bytes; `give` bounds the time."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.first = b""
        """The first 200 bytes of the greeting, for messages."""
        self._heard = 0
        self._greeted = False
        self._trusted = False
        self._deadline: float | None = None
        self._seconds = 0.0

    def give(self, seconds: float | None) -> None:
        """Set the seconds that all further reads of the handshake may take; None removes the limit."""
        self._seconds = seconds or 0.0
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def trust(self) -> None:
        """Remove the limit on the total bytes."""
        self._trusted = True

    def handshake_timed_out(self) -> bool:
        self._check_time()
        return super().handshake_timed_out()

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        self._greeted = True
        if not 0 <= n <= PACKET_LIMIT + 64:
            raise SSHException(f"the server announces a packet of {n} bytes, or sends garbage")
        self._count(n)
        return super().read_all(n, check_rekey)

    def read_message(self) -> tuple[int, Message]:
        kind, message = super().read_message()
        if kind in (MSG_EXT_INFO, MSG_USERAUTH_INFO_REQUEST):
            _check_count(kind, message.asbytes())
        return kind, message

    def _read_timeout(self, timeout: float) -> bytes:
        self._check_time()
        data: bytes = super()._read_timeout(timeout)  # type: ignore[misc]
        self.first += data[: max(0, 200 - len(self.first))]
        self._count(len(data))
        if not self._greeted and self._heard > GREETING_LIMIT:
            raise SSHException(f"the server sends {self._heard} bytes without an SSH greeting")
        return data

    def _count(self, size: int) -> None:
        if not self._trusted:
            self._heard += size
            if self._heard > STRANGER_LIMIT:
                raise SSHException(f"the server sends more than {STRANGER_LIMIT // 1024} KiB before the login")

    def _check_time(self) -> None:
        deadline = self._deadline  # read once, since another thread may remove the limit
        if deadline is not None and time.monotonic() > deadline:
            raise SSHException(f"the handshake did not finish in {self._seconds:.0f} s")


class GuardedTransport(Transport):
    """A transport that offers only the algorithms that the target's settings allow.

    Raises:
        HostError: A setting allows no algorithm that is supported here.
    """

    packetizer: GuardedPacketizer
    _kex_info: ClassVar[dict[str, Any]] = {**Transport._kex_info, "curve25519-sha256": KexCurve25519}  # type: ignore[attr-defined]

    def __init__(self, connection: Any, target: SshTarget) -> None:
        super().__init__(connection, packetizer_class=GuardedPacketizer)
        self._shown_key = b""
        self.farewell = ""
        """The server's message when it ended the connection, unsanitised."""
        self._channel_handler_table = {
            **Transport._channel_handler_table,  # type: ignore[attr-defined]
            MSG_CHANNEL_DATA: _fed(Channel._feed),  # type: ignore[attr-defined]
            MSG_CHANNEL_EXTENDED_DATA: _fed(Channel._feed_extended),  # type: ignore[attr-defined]
        }
        self._preferred_ciphers = by_speed(_usable(target, "Ciphers", target.ciphers, self._cipher_info))  # type: ignore[attr-defined]
        self._preferred_macs = _usable(target, "MACs", target.macs, self._mac_info)  # type: ignore[attr-defined]
        self._preferred_kex = _usable(target, "KexAlgorithms", target.key_exchanges, self._kex_info)
        keys = self._key_info  # type: ignore[attr-defined]
        self._preferred_keys = _usable(target, "HostKeyAlgorithms", target.host_key_algorithms, keys)
        public_keys = map(plain, target.public_key_algorithms)
        self._preferred_pubkeys = tuple(name for name in dict.fromkeys(public_keys) if name != SHA1)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key algorithms exactly as set, since paramiko would add those with certificates."""
        return self._preferred_keys

    def prefer_keys(self, algorithms: tuple[str, ...]) -> None:
        """Set the order of the host key algorithms."""
        self._preferred_keys = algorithms

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()
        self.farewell = message.get_string().decode(errors="replace")[:300]

    def _parse_channel_open_failure(self, message: Message) -> None:
        """Keep the server's reason in the exception; paramiko drops it."""
        number, code, said = message.get_int(), message.get_int(), message.get_string().decode(errors="replace")[:300]
        with self.lock:
            kind = CONNECTION_FAILED_CODE.get(code, f"code {code}")
            self.saved_exception = ChannelException(code, f"{kind}: {said}" if said else kind)
            if waiting := self.channel_events.pop(number, None):
                self._channels.delete(number)  # type: ignore[attr-defined]
                waiting.set()

    def _verify_key(self, host_key: bytes, signature: bytes) -> None:
        """Verify the signature, and that key and signature have the agreed type and the key never changes."""
        agreed = self.host_key_type or ""
        if (blob_type(host_key), blob_type(signature)) != (key_type(agreed), agreed):
            what = f"{blob_type(host_key) or '?'} with a signature of {blob_type(signature) or '?'}"
            raise SSHException(f"the server shows a host key of type {what} instead of {agreed}")
        if self._shown_key and self._shown_key != host_key:
            raise SSHException("the server shows a different host key than before")
        super()._verify_key(host_key, signature)  # type: ignore[misc]
        self._shown_key = bytes(host_key)


def _usable(target: SshTarget, setting: str, wanted: tuple[str, ...], known: Any) -> tuple[str, ...]:
    usable = tuple(name for name in wanted if name in known and name != SHA1 and not name.endswith(CERTIFICATE))
    if not usable:
        what = f"{setting} in your ssh configuration has nothing that disttui supports: {', '.join(wanted) or 'empty'}"
        some = [name for name in known if "cbc" not in name and "md5" not in name and "sha1" not in name]
        cure = f"Allow one of these for this host: {', '.join(some)}. Or set `transport: ssh` for it in the profile."
        raise HostError(target.name, what, cure)
    return usable


def _fed(feed: Any) -> Any:
    """Wrap a handler of channel data to enforce the window, since paramiko would buffer any amount."""

    def bounded(channel: Any, message: Message) -> None:
        feed(channel, message)
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > _WINDOWS * channel.in_window_size:
            raise SSHException("the server exceeds the window of its channel")

    return bounded


def _check_count(kind: int, payload: bytes) -> None:
    rest = payload
    try:
        if kind == MSG_USERAUTH_INFO_REQUEST:
            for _ in range(3):  # name, instruction, language
                _, rest = take(rest)
        (count,) = struct.unpack(">I", rest[:4])
    except (ValueError, struct.error):
        raise SSHException("the server sends a damaged packet") from None
    if count > _QUESTIONS:
        raise SSHException(
            f"the server announces {count} {'extensions' if kind == MSG_EXT_INFO else 'questions'} at once"
        )
