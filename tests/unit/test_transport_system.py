"""`transport: ssh`: the ssh program of this machine, its questions, its errors and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from disttui.runner.address import Address
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import HostError, InputError, LinkLostError
from disttui.runner.hosts.link import Link
from disttui.runner.profile.load import parse
from disttui.runner.runs.registry import KnownHost
from disttui.runner.transport import RefusePrompts, Stream
from disttui.runner.transport.connector import HostConnector
from disttui.runner.transport.system_ssh import SystemSshConnector, SystemSshStream
from tests.files import new_file
from tests.unit.sshd import Answers, Place, Sshd, children, new_key, public
from tests.unit.waiting import wait_for

ROOT = Path(__file__).parents[2]


def run(config: str, prompts: Answers | RefusePrompts | None = None, host: str = "alias", **options: bool) -> Stream:
    return SystemSshConnector(config, prompts or RefusePrompts(), **options).connect(Address(host)).run("cat")


def echoes(stream: Stream) -> bool:
    stream.write(b"in\n")
    try:
        return stream.read(10, 30) == b"in\n"
    finally:
        stream.close()


def test_node_program_runs_over_it(place: Place, server: Sshd) -> None:
    connector = HostConnector(place.write(server.block("alias")), RefusePrompts(), transport="ssh")
    link = Link(connector.connect(Address("alias")), "alias")
    assert link.request("orphans")["found"] is not None
    connector.close()
    wait_for(lambda: link.closed)


def test_another_program_in_place_of_the_command_is_heard(place: Place) -> None:
    """As where a login script ends, or an account has no shell: the link then names the cause."""
    config = place.write(place.sshd("two", "ForceCommand echo only this; exit 3").block("alias"))
    stream = run(config)
    assert stream.read(100, 30) == b"only this\n"
    assert stream.read(100, 30) == b"" and stream.exit_status() == 3


def test_link_names_an_account_without_a_shell(place: Place) -> None:
    server = place.sshd("one", "ForceCommand echo This service allows sftp connections only.; exit 1")
    connector = SystemSshConnector(place.write(server.block("alias")), RefusePrompts())
    with pytest.raises(HostError, match=r"no login shell there\n"):
        Link(connector.connect(Address("alias")), "alias")


def test_a_shell_that_runs_no_command_is_no_endless_login(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttui.runner.transport.system_ssh._UNANSWERED", 1.0)
    assert echoes(run(place.write(place.sshd("one", "ForceCommand cat").block("alias"))))


def test_a_shared_connection_that_is_stale_is_named(
    place: Place, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the network of a laptop has changed: its master still waits for the host."""
    monkeypatch.setattr("disttui.runner.transport.system_ssh._UNANSWERED", 0.2)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as master:
        master.bind(f"{folder}/master")
        master.listen()
        config = place.write(server.block("alias", f"  ControlPath {folder}/master"))
        with pytest.raises(
            HostError, match=rf"no answer in \d s through ssh's open connection {folder}/master"
        ) as caught:
            run(config)
        assert f"`ssh -F {config} alias -O exit`" in caught.value.cure


def test_a_server_busy_with_other_logins_is_tried_again(
    place: Place, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = place.write(server.block("alias"))
    other = server.busy()

    def end_other() -> None:
        other.close()
        wait_for(lambda: not server.sessions())

    monkeypatch.setattr("disttui.runner.transport.system_ssh.wait_out", end_other)
    assert echoes(run(config))


def test_unknown_key_is_asked_about(place: Place, server: Sshd) -> None:
    config = place.write(server.block("alias"), trusted="")
    with pytest.raises(HostError, match="host key is unknown"):
        run(config)
    prompts = Answers(accept=True)
    assert echoes(run(config, prompts))
    (asked,) = prompts.questions
    assert re.fullmatch(rf"alias \(\[127\.0\.0\.1\]:{server.port}\): ED25519 SHA256:\S+", asked)
    assert echoes(run(config)), "it was not remembered"


def test_new_keys_are_taken_where_the_user_says_so(place: Place, server: Sshd) -> None:
    assert echoes(run(place.write(server.block("alias"), trusted=""), accept_new=True))
    config = place.write(server.block("alias", "  StrictHostKeyChecking no"), trusted="")
    assert echoes(run(config))


@pytest.mark.parametrize("strict", ["ask", "no"])
def test_changed_key_is_refused(place: Place, server: Sshd, strict: str) -> None:
    """As by the built-in transport, whatever the configuration says."""
    other = public(new_key(place.folder / "other")).decode()
    options = f"  StrictHostKeyChecking {strict}\n  NoHostAuthenticationForLocalhost yes"
    config = place.write(server.block("alias", options), trusted=f"[127.0.0.1]:{server.port} {other}")
    with pytest.raises(HostError, match="host key has changed") as caught:
        run(config, Answers(accept=True))
    assert f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f '{place.known_hosts}'" in caught.value.cure


def test_errors_name_cause_and_cure(place: Place, server: Sshd) -> None:
    server.authorized.write_text("")
    config = place.write(server.block("alias") + "Host off\n  HostName 127.0.0.1\n  Port 1\n")
    with pytest.raises(HostError, match=r"login as \S+ refused; the server accepts publickey") as caught:
        run(config)
    assert "kinit" in caught.value.cure
    with pytest.raises(HostError, match=r"127\.0\.0\.1:1 refuses the connection"):
        run(config, host="off")
    with pytest.raises(HostError, match=r"the name 'nohost\.invalid' does not resolve"):
        run(config, host="nohost.invalid")
    with pytest.raises(InputError, match="begins with '-'"):
        run(config, host="-oProxyCommand=id")


def test_passphrase_of_a_key(place: Place, server: Sshd) -> None:
    locked = new_key(place.folder / "locked", passphrase="open")
    server.authorized.write_bytes(public(locked))
    config = place.write(server.block("alias", f"  IdentityFile {locked}"))
    prompts = Answers("wrong", "open")
    assert echoes(run(config, prompts))
    assert prompts.questions == [f"alias: Enter passphrase for key '{locked}':"] * 2


def test_passphrase_is_asked_for_once_for_all_hosts(place: Place, server: Sshd) -> None:
    locked = new_key(place.folder / "locked", passphrase="open")
    server.authorized.write_bytes(public(locked))
    config = place.write(server.block("alias other", f"  IdentityFile {locked}"))
    prompts = Answers("wrong", "open")
    connector = SystemSshConnector(config, prompts)
    for host in ("alias", "other"):
        assert echoes(connector.connect(Address(host)).run("cat"))
    assert len(prompts.questions) == 2


def test_jump_host_of_the_configuration(place: Place, server: Sshd) -> None:
    behind = place.sshd("two")
    config = place.write(server.block("gate") + behind.block("alias", "  ProxyJump gate"))
    assert echoes(run(config))
    assert server.logins == behind.logins == 1


def test_problems_of_a_jump_host_are_named(place: Place, server: Sshd) -> None:
    closed = place.sshd("closed", extra="AllowTcpForwarding no")
    blocks = server.block("gate") + closed.block("closed") + server.block("alias", "  ProxyJump closed")
    config = place.write(blocks + "Host shut\n  HostName 127.0.0.1\n  Port 1\n  ProxyJump gate\n")
    with pytest.raises(HostError, match=r"the jump host cannot reach 127\.0\.0\.1:1: .*Connection refused"):
        run(config, host="shut")
    with pytest.raises(HostError, match="administratively prohibited") as caught:
        run(config)
    assert "AllowTcpForwarding" in caught.value.cure
    server.authorized.write_text("")
    with pytest.raises(HostError, match=r"jump host: login as \S+@127\.0\.0\.1 refused; the server accepts publickey"):
        run(config, host="shut")


def test_key_that_others_can_read_is_named(place: Place, server: Sshd) -> None:
    config = place.write(server.block("alias"))
    place.key.chmod(0o644)
    with pytest.raises(HostError, match=r"refused.*id_ed25519 is not usable: others can read it: chmod 600"):
        run(config)


def test_settings_that_would_break_the_link_are_ignored(place: Place, server: Sshd) -> None:
    marker = place.folder / "ran"
    more = f"  RemoteCommand false\n  RequestTTY force\n  PermitLocalCommand yes\n  LocalCommand touch {marker}\n"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path must be short
        more += f"  ControlMaster auto\n  ControlPath {folder}/master\n  ForwardAgent yes\n  LogLevel QUIET"
        stream = run(place.write(server.block("alias", more)))
        assert not list(Path(folder).iterdir()), "it has become a master, which would end with disttui"
        assert echoes(stream)
    assert not marker.exists()


@pytest.mark.parametrize("setting", ["ForkAfterAuthentication yes", "SessionType none", "StdinNull yes", "Tunnel yes"])
def test_settings_for_sessions_without_a_command_do_not_count(place: Place, server: Sshd, setting: str) -> None:
    assert echoes(run(place.write(server.block("alias", f"  {setting}\n  ExitOnForwardFailure yes"))))


def test_too_many_keys_have_a_cure(place: Place) -> None:
    server = place.sshd("one", "MaxAuthTries 1")
    files = "".join(f"  IdentityFile {new_key(place.folder / name)}\n" for name in ("first", "second"))
    config = place.write(server.block("alias", files))
    with pytest.raises(HostError, match=r"login as .* refused: too many authentication failures") as caught:
        run(config)
    assert "IdentitiesOnly yes" in caught.value.cure


def test_family_of_addresses_that_a_host_lacks(place: Place, server: Sshd) -> None:
    with pytest.raises(HostError, match=r"alias: '127\.0\.0\.1' has no IPv6 address") as caught:
        run(place.write(server.block("alias", "  AddressFamily inet6")))
    assert "AddressFamily" in caught.value.cure


def test_dropped_connection_is_a_lost_link(place: Place, server: Sshd) -> None:
    stream = run(place.write(server.block("alias")))
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        stream.read(10, 30)
    stream.close()
    config = place.write(server.block("alias", "  ProxyCommand echo SSH-2.0-x; exec sleep 0.1"))
    with pytest.raises(LinkLostError, match=r"ssh: .*Connection"):
        run(config)


def test_close_ends_ssh_at_once(place: Place, server: Sshd) -> None:
    stream = (
        SystemSshConnector(place.write(server.block("alias")), RefusePrompts())
        .connect(Address("alias"))
        .run("sleep 600")
    )
    assert isinstance(stream, SystemSshStream)
    stream.close()
    assert stream._process.wait(30) is not None


@pytest.mark.parametrize("asks", [False, True])
def test_killed_viewer_leaves_no_ssh(place: Place, server: Sshd, asks: bool) -> None:
    """Neither one that is logged in nor one that waits for an answer."""
    config = place.write(server.block("alias"), trusted="" if asks else None)
    code = (
        "import sys, time\nfrom disttui.runner.address import Address\n"
        "from disttui.runner.transport import RefusePrompts\n"
        "from disttui.runner.transport.system_ssh import SystemSshConnector\n"
        "class Slow(RefusePrompts):\n"
        "    def accept_host_key(self, *_):\n        print('now', flush=True)\n        time.sleep(600)\n"
        "stream = SystemSshConnector(sys.argv[1], Slow()).connect(Address('alias')).run('cat')\n"
        "print('now', flush=True)\ntime.sleep(600)\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        viewer = subprocess.Popen(
            [sys.executable, "-c", code, config], cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": folder}
        )
        assert viewer.stdout is not None
        assert viewer.stdout.readline() == b"now\n"
        mine = children(viewer.pid)
        assert mine
        viewer.kill()
        viewer.wait()
        viewer.stdout.close()
        wait_for(lambda: not any(_runs(pid) for pid in mine))


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_transport_of_profile_and_config(tmp_path: Path) -> None:
    """A host's own goes before the profile's, that before the config's; a run keeps it."""
    text = "disttui: 1\nname: t\ntransport: ssh\nhosts: [a, {host: b, transport: builtin}]\njob: {script: x.py}\n"
    hosts = parse(text, "t").hosts
    assert [host.endpoint.transport for host in hosts] == ["ssh", "builtin"]
    assert KnownHost.of(hosts[0], "a").as_host().endpoint.transport == "ssh"
    config = new_file(tmp_path / "disttui" / "config.yaml", "transport: ssh\n")
    with Viewer({"XDG_CONFIG_HOME": str(tmp_path)}) as viewer:
        connector = viewer.connector()
        assert isinstance(connector, HostConnector)
        assert connector._transport == "ssh"
    config.write_text("transport: telnet\n")
    with Viewer({"XDG_CONFIG_HOME": str(tmp_path)}) as viewer, pytest.raises(InputError, match="one of builtin, ssh"):
        viewer.connector()
