"""Connections to real sshds: configuration, host keys, jump hosts, what goes wrong."""

from __future__ import annotations

import base64
import os
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from disttui.runner.address import Address
from disttui.runner.errors import HostError, InputError
from disttui.runner.transport import Prompts, RefusePrompts
from disttui.runner.transport.auth import Login
from disttui.runner.transport.base import Gate
from disttui.runner.transport.known_hosts import fingerprint
from disttui.runner.transport.ssh import SshConnector
from tests.unit.sshd import Answers, Place, Sshd, new_key, public
from tests.unit.waiting import stands_in, wait_for


def ask(config: str, host: str | Address, command: str, prompts: Prompts | None = None, **options: bool) -> str:
    """Connect, run one command, return its output."""
    with closing(SshConnector(config, prompts or RefusePrompts(), **options)) as connector:
        return output(connector, host, command)


def output(connector: SshConnector, host: str | Address, command: str) -> str:
    address = host if isinstance(host, Address) else Address(host)
    stream = connector.connect(address).run(command)
    data = b""
    while piece := stream.read(65536, 20):
        data += piece
    return data.decode()


def blob(key: Path) -> bytes:
    return base64.b64decode(public(key).split()[1])


def test_alias_include_and_match_exec(place: Place) -> None:
    server = place.sshd("one")
    included = place.folder / "included"
    included.write_text(f'Match exec "test %n = conjured"\n  HostName 127.0.0.1\n  Port {server.port}\n')
    config = place.write(f"Include {included}\n{server.block('alias')}")
    assert ask(config, "alias", "echo $SSH_CONNECTION").split()[3] == str(server.port)
    assert ask(config, "conjured", "echo here") == "here\n"
    # The profile's own port goes before the alias's.
    assert ask(config, Address("127.0.0.1", port=server.port), "echo plain") == "plain\n"


def test_unknown_key_is_refused_and_shown(place: Place) -> None:
    server = place.sshd("one")
    config = place.write(server.block("alias"), trusted="garbage\n")
    with pytest.raises(HostError) as caught:
        ask(config, "alias", "true")
    assert f"{place.known_hosts}:1 fewer than three fields" in caught.value.sentence
    assert fingerprint(blob(server.key)) in caught.value.sentence
    assert "--accept-new-host-keys" in caught.value.cure
    assert place.known_hosts.read_text() == "garbage\n"


def test_unknown_key_is_asked_about_once(place: Place) -> None:
    server = place.sshd("one")
    config = place.write(server.block("alias"), trusted="")
    prompts = Answers(accept=True)
    assert ask(config, "alias", "echo in", prompts) == "in\n"
    assert prompts.questions == [f"alias: ssh-ed25519 {fingerprint(blob(server.key))}"]
    assert ask(config, "alias", "echo again") == "again\n"


def test_strict_never_asks(place: Place) -> None:
    config = place.write(place.sshd("one").block("alias", "  StrictHostKeyChecking yes"), trusted="")
    prompts = Answers(accept=True)
    with pytest.raises(HostError, match="unknown"):
        ask(config, "alias", "true", prompts)
    assert not prompts.questions


@pytest.mark.parametrize("setting", ["StrictHostKeyChecking accept-new", "StrictHostKeyChecking no", ""])
def test_accept_new_adds_unknown_but_never_changed(place: Place, setting: str) -> None:
    server = place.sshd("one")
    config = place.write(server.block("alias", f"  {setting}"), trusted="")
    assert ask(config, "alias", "echo in", accept_new=not setting) == "in\n"
    assert place.known_hosts.read_text().split()[:3] == server.known().split()[:3]
    place.known_hosts.write_text("# first line\n" + server.known(new_key(place.folder / "other")))
    with pytest.raises(HostError, match="has changed") as caught:
        ask(config, "alias", "true", accept_new=True)
    assert f"{place.known_hosts}:2" in caught.value.sentence
    assert "ssh-keygen -R" in caught.value.cure


def test_revoked_key(place: Place) -> None:
    server = place.sshd("one")
    config = place.write(server.block("alias"), trusted=server.known() + f"@revoked * {public(server.key).decode()}")
    with pytest.raises(HostError, match=r"revoked by .*known_hosts:2"):
        ask(config, "alias", "true")


def test_the_known_key_type_is_asked_for(place: Place) -> None:
    server = place.sshd("one")
    config = place.write(server.block("alias"), trusted="garbage\n" + server.known(server.rsa_key))
    assert ask(config, "alias", "echo in") == "in\n"


def test_host_key_alias(place: Place) -> None:
    server = place.sshd("one")
    known = f"shared {public(server.key).decode()}"
    config = place.write(server.block("alias", "  HostKeyAlias shared"), trusted=known)
    assert ask(config, "alias", "echo in") == "in\n"


def test_login_refused_names_the_keys(place: Place) -> None:
    server = place.sshd("one")
    server.authorized.write_text("")
    with pytest.raises(HostError) as caught:
        ask(place.write(server.block("alias")), "alias", "true")
    assert f"127.0.0.1:{server.port} refused; the server accepts publickey; tried: {place.key}" in caught.value.sentence


def test_a_server_busy_with_other_logins_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    server = place.sshd("one")
    config = place.write(server.block("alias"))
    other = server.busy()

    def end_other() -> None:
        other.close()
        wait_for(lambda: not server.sessions())

    monkeypatch.setattr("disttui.runner.transport.ssh.wait_out", end_other)
    assert ask(config, "alias", "echo in") == "in\n"


def silent() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_no_way_to_a_host(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    config = place.write("Host *\n  ConnectTimeout 1\n")
    with silent() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(HostError, match="no SSH handshake"):
            ask(config, Address("127.0.0.1", port=port), "true")
    with pytest.raises(HostError, match="refuses the connection"):
        ask(config, Address("127.0.0.1", port=port), "true")
    with pytest.raises(HostError, match=r"'no\.such\.invalid' does not resolve"):
        ask(config, "no.such.invalid", "true")
    with pytest.raises(HostError, match="cannot connect to"):
        ask(config, "255.255.255.255", "true")
    config = place.write("Host *\n  AddressFamily inet6\n")
    with pytest.raises(HostError, match=r"'127\.0\.0\.1' has no IPv6 address\n.*AddressFamily"):
        ask(config, "127.0.0.1", "true")


def test_full_backlog_times_out(place: Place) -> None:
    config = place.write("Host *\n  ConnectTimeout 1\n")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place_ = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(place_)
        assert select.select([], fillers, [], 60)[1]  # from here on there is no room for another
        try:
            with pytest.raises(HostError, match=r"no answer from .* in 1 s"):
                ask(config, Address("127.0.0.1", port=place_[1]), "true")
        finally:
            for filler in fillers:
                filler.close()


def test_other_greetings(place: Place) -> None:
    """A web server, and one that hangs up at once."""
    for greeting in (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200, b""):
        with silent() as listener:

            def serve(greeting: bytes = greeting, listener: socket.socket = listener) -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(greeting)

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises(HostError, match="no SSH handshake"):
                ask(place.write(""), Address("127.0.0.1", port=listener.getsockname()[1]), "true")
            thread.join()


def chain(place: Place) -> tuple[Sshd, Sshd, Sshd]:
    return place.sshd("gate"), place.sshd("inner"), place.sshd("last")


def test_jump_chain_by_comma_list(place: Place) -> None:
    gate, inner, last = chain(place)
    jump = f"  ProxyJump gate,127.0.0.1:{inner.port}"
    config = place.write(gate.block("gate") + last.block("last", jump))
    assert ask(config, "last", "echo $SSH_CONNECTION").split()[3] == str(last.port)
    assert (gate.logins, inner.logins, last.logins) == (1, 1, 1)


def test_jump_chain_by_each_hops_own_configuration(place: Place) -> None:
    gate, inner, last = chain(place)
    blocks = gate.block("gate") + inner.block("inner", "  ProxyJump gate") + last.block("last", "  ProxyJump inner")
    assert ask(place.write(blocks), "last", "echo $SSH_CONNECTION").split()[3] == str(last.port)
    assert (gate.logins, inner.logins, last.logins) == (1, 1, 1)


def test_hosts_share_their_jump_host(place: Place) -> None:
    gate, inner, last = chain(place)
    blocks = gate.block("gate") + inner.block("n0", "  ProxyJump gate") + last.block("n1", "  ProxyJump gate")
    with closing(SshConnector(place.write(blocks), RefusePrompts())) as connector:
        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(lambda i: output(connector, f"n{i % 2}", f"echo {i}"), range(8)))
        assert said == [f"{i}\n" for i in range(8)]
        assert gate.logins == 1
        # A jump host that went away is opened anew.
        for pid in gate.sessions():
            os.kill(pid, 9)
        wait_for(lambda: not gate.sessions())
        deadline = time.monotonic() + 20
        while True:
            try:
                assert output(connector, "n0", "echo back") == "back\n"
                break
            except (HostError, ConnectionError):
                assert time.monotonic() < deadline
        assert gate.logins == 2


def test_jump_host_problems(place: Place) -> None:
    gate = place.sshd("gate", extra="AllowTcpForwarding no")
    blocks = gate.block("gate") + "Host shut\n  HostName 127.0.0.1\n  Port 1\n  ProxyJump gate\n"
    blocks += "Host lost\n  ProxyJump nowhere\nHost nowhere\n  HostName no.such.invalid\n"
    blocks += "Host a\n  ProxyJump b\nHost b\n  ProxyJump c\nHost c\n  ProxyJump b\n"
    config = place.write(blocks)
    with pytest.raises(HostError, match=r"shut: the jump host cannot reach 127\.0\.0\.1:1") as caught:
        ask(config, "shut", "true")
    assert "AllowTcpForwarding" in caught.value.cure
    free = place.sshd("free")
    config = place.write(blocks.replace(gate.block("gate"), free.block("gate")))
    with pytest.raises(HostError, match=r"cannot reach 127\.0\.0\.1:1: Connect failed: Connection refused"):
        ask(config, "shut", "true")
    with pytest.raises(HostError, match=r"lost: jump host nowhere: the name 'no\.such\.invalid' does not resolve"):
        ask(config, "lost", "true")
    with pytest.raises(HostError, match="is circular"):
        ask(config, "a", "true")
    place.write(gate.block("gate") + "Host n\n  ProxyJump gate\n", trusted="")
    with pytest.raises(HostError, match="n: jump host gate: its host key is unknown"):
        ask(config, "n", "true")
    with pytest.raises(InputError, match="not a valid host name"):
        ask(place.write("Host n\n  ProxyJump x$(id)\n"), "n", "true")


def test_at_most_so_many_connects_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttui.runner.transport.base.PATIENCE", 60.0)
    server = place.sshd("one")
    config = place.write(server.block("alias"))
    with closing(SshConnector(config, RefusePrompts(), limit=2)) as connector, silent() as listener:
        # Two hosts that never greet hold both slots.
        stuck = Address("127.0.0.1", port=listener.getsockname()[1])
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(connector.connect, stuck) for _ in range(2)]
            held = [listener.accept()[0] for _ in range(2)]
            third = pool.submit(output, connector, "alias", "echo in")
            wait_for(lambda: any(stands_in(one, "turn") and stands_in(one, "wait") for one in threading.enumerate()))
            assert server.logins == 0
            for connection in held:
                connection.close()
            assert third.result(30) == "in\n"
            for each in waiting:
                assert isinstance(each.exception(30), HostError)


def test_connects_that_wait_keep_no_other_host_out_for_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttui.runner.transport.base.PATIENCE", 0.2)
    server = place.sshd("one")
    patient = "Host *\n  ConnectTimeout 90\n"
    connector = SshConnector(place.write(server.block("alias") + patient), RefusePrompts(), limit=2)
    with silent() as listener, ThreadPoolExecutor(3) as pool:
        stuck = Address("127.0.0.1", port=listener.getsockname()[1])
        waiting = [pool.submit(connector.connect, stuck) for _ in range(2)]
        held = [listener.accept()[0] for _ in range(2)]
        assert pool.submit(output, connector, "alias", "echo in").result(60) == "in\n"
        assert not any(each.done() for each in waiting)
        for connection in held:
            connection.close()
        assert all(isinstance(each.exception(60), HostError) for each in waiting)
    connector.close()


def test_host_that_hangs_at_login_does_not_block_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttui.runner.transport.base.PATIENCE", 0.2)
    begun, let_go, run = threading.Event(), threading.Event(), Login.run

    def hangs(login: Login) -> None:
        if login._target.name == "stuck":
            begun.set()
            assert let_go.wait(120)
        run(login)

    monkeypatch.setattr(Login, "run", hangs)
    config = place.write("".join(place.sshd(name).block(name) for name in ("stuck", "well")))
    with closing(SshConnector(config, RefusePrompts(), limit=1)) as connector, ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(output, connector, "stuck", "echo in")
        try:
            assert begun.wait(60)
            assert pool.submit(output, connector, "well", "echo in").result(60) == "in\n"
            assert not stuck.done()
        finally:
            let_go.set()
        assert stuck.result(60) == "in\n"


def test_logins_waiting_for_a_person_hold_back_new_ones(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends a login that takes long: 120 s by LoginGraceTime."""
    counted: list[bool] = []

    class Slow(RefusePrompts):
        def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
            counted.extend(turn.asks for turn in connector._gate._inside)
            return True

    with closing(SshConnector(place.write(place.sshd("one").block("one"), trusted=""), Slow())) as connector:
        assert output(connector, "one", "echo in") == "in\n" and counted == [True]
    monkeypatch.setattr("disttui.runner.transport.base.PATIENCE", 0.1)
    gate, came = Gate(1), threading.Event()

    def come() -> None:
        with gate.turn():
            came.set()

    other = threading.Thread(target=come)
    with gate.turn() as turn:
        with turn.asking():
            other.start()
            assert not came.wait(0.5), "the other one has not begun"
        assert came.wait(60)
    other.join(60)


def test_nothing_reaches_the_terminal(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    server = place.sshd("one")
    connector = SshConnector(place.write(server.block("alias")), RefusePrompts())
    stream = connector.connect(Address("alias")).run("cat")
    for pid in server.sessions():
        os.kill(pid, 9)
    with pytest.raises(ConnectionError):
        stream.read(10, 20)
    with pytest.raises(HostError):
        connector.connect(Address("127.0.0.1", port=1))
    connector.close()
    assert capfd.readouterr() == ("", "")
