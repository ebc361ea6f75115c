"""A host that is no member of a run and knows its port: it replays what it has overheard, and sends bytes at random.

Plain Python, run by `python3 -c`. `tap FIRST LAST` listens in to a host's network and prints `hex <bytes>` for every
packet to a port of that range; `attack SEED` reads such lines, `gang <address> <port>` and `touch <address> <port>`.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import sys
import threading
import time

_LONGEST = 1 << 16


def tap(first: int, last: int) -> None:
    """Print the bytes of TCP that go to the ports."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as wire:
        while True:
            packet = wire.recv(_LONGEST)[14:]
            tcp = packet[(packet[0] & 15) * 4 :]
            if packet[9] != socket.IPPROTO_TCP or not first <= struct.unpack(">H", tcp[2:4])[0] <= last:
                continue
            data = tcp[(tcp[12] >> 4) * 4 : struct.unpack(">H", packet[2:4])[0] - (len(packet) - len(tcp))]
            if data:
                print("hex", data[:1500].hex(), flush=True)


class Stranger:
    """What it knows, and the connections that it keeps open."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.heard: list[bytes] = []
        self.gang: tuple[str, int] | None = None
        self.others: list[tuple[str, int]] = []
        self.open: list[socket.socket] = []

    def learn(self, line: str) -> None:
        """Take a line of standard input."""
        kind, *words = line.split()
        if kind == "hex":
            self.heard = [*self.heard[-99:], bytes.fromhex(words[0])]
        elif kind == "gang":
            self.gang, self.others = (words[0], int(words[1])), []
        elif kind == "touch":
            # Torch's store believes whatever it is sent, by torch's nature: nothing but a connection is for it.
            self.others.append((words[0], int(words[1])))

    def act(self) -> None:
        """Do one thing to one port."""
        while len(self.open) > 40:
            self.open.pop(self.dice.randrange(len(self.open))).close()
        if self.gang is None:
            return
        if self.others and self.dice.random() < 0.1:
            self.call(self.dice.choice(self.others), [])
        else:
            self.call(self.gang, self.words())

    def call(self, address: tuple[str, int], words: list[bytes]) -> None:
        """Connect, say it, and stay or go."""
        try:
            connection = socket.create_connection(address, 1.0)
            self.open.append(connection)
            for word in words:
                connection.sendall(word)
        except OSError:
            pass

    def words(self) -> list[bytes]:
        """What is sent on one connection."""
        dice = self.dice
        noise = dice.randbytes(dice.choice([1, 4, 90, 4000]))
        texts = ["[" * 2000, '{"nonce":"\\ud800\\udfff"}', "null", '{"n":1e400}', json.dumps({"nonce": "0" * 32})]
        text = dice.choice(texts).encode()
        said = [
            [noise],
            [struct.pack(">I", len(text)) + text],
            [struct.pack(">I", dice.randrange(1 << 32)) + noise],
            [],
        ]
        if self.heard:
            packet = bytearray(dice.choice(self.heard))
            said += [dice.sample(self.heard, min(len(self.heard), 8)), self.heard[:20], [bytes(packet), noise]]
            packet[dice.randrange(len(packet))] ^= 1 << dice.randrange(8)
            said += [[*self.heard[:2], bytes(packet)]]
        return dice.choice(said)


def attack(seed: int) -> None:
    """Go on until standard input ends."""
    stranger = Stranger(seed)

    def listen() -> None:
        for line in sys.stdin:
            stranger.learn(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        stranger.act()
        time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "tap":
        tap(int(sys.argv[2]), int(sys.argv[3]))
    else:
        attack(int(sys.argv[2]))
