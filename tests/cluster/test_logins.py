"""Logins that only a real sshd asks for: password and one-time code by PAM, Kerberos, a token with a PIN, an open
ControlMaster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from tests.cluster.host import ClusterHost
from tests.cluster.typed import User, typed, wait_gone
from tests.command import ran, running
from tests.files import new_file, new_folder
from tests.unit.sshd import free_port
from tests.unit.waiting import wait_for

SECRET = "3132333435363738393031323334353637383930"
PAM = """\
auth requisite pam_unix.so
auth required pam_oath.so usersfile=/root/users.oath window=10 digits=6
account required pam_permit.so
session required pam_permit.so
"""
BANNER = "\x1b]0;owned\x07Members of the lab only\n"
REALM = "DISTTUI.TEST"
KRB5 = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  default_keytab_name = /root/krb5.keytab
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""
KDC = """\
[kdcdefaults]
  kdc_ports = 0
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
  }}
"""


def sshd_takes(me: User, host: ClusterHost, settings: str) -> None:
    """Put settings before those of a host's sshd: the first of a keyword counts."""
    config = me.cluster.folder / f"{host.name}.sshd_config"
    config.write_text(settings + config.read_text())
    host.restart_sshd()


def ssh_uses(me: User, settings: str) -> None:
    """Put settings before those of the viewer's ssh."""
    me.cluster.ssh_config.write_text(f"Host *\n{settings}\n{me.cluster.ssh_config.read_text()}")


def by_program(me: User) -> None:
    """Let the user's config choose the ssh program."""
    new_file(me.home / ".config" / "disttui" / "config.yaml", "transport: ssh\n")


def code(counter: int) -> str:
    """The one-time code of this counter."""
    done = ran(["oathtool", "-c", str(counter), SECRET], check=True)
    return done.stdout.strip()


def with_codes(me: User) -> None:
    """Let the hosts ask for a password and a one-time code, and for no key."""
    hashed = ran(["openssl", "passwd", "-6", "sesame"], check=True).stdout
    for host in me.cluster.hosts:
        for name, text in {
            "pam": PAM,
            "shadow": f"root:{hashed.strip()}:19000:0:99999:7:::\n",
            "users.oath": f"HOTP root - {SECRET}\n",
            "banner": BANNER,
        }.items():
            new_file(host.home / name, text, 0o600)
        host.run("mount --bind /root/pam /etc/pam.d/sshd && mount --bind /root/shadow /etc/shadow", check=True)
        sshd_takes(
            me, host, "UsePAM yes\nKbdInteractiveAuthentication yes\nPubkeyAuthentication no\nBanner /root/banner\n"
        )


@pytest.mark.oath
@pytest.mark.parametrize("transport", ["builtin", "ssh"])
def test_password_once_and_a_code_for_each_host(user: Callable[..., User], transport: str) -> None:
    """On a terminal: what the hosts say is shown, the password goes to all, a code to none but its own."""
    me = user(3)
    with_codes(me)
    if transport == "ssh":
        by_program(me)
    words = me.command("probe", *(host.name for host in me.cluster.hosts))
    child = pexpect.spawn(words[0], words[1:], env=me.environment(), cwd=str(me.home), encoding="utf-8", timeout=120)
    asked: dict[str, list[str]] = {}
    questions = (r"\r?(node\d): (password)[^\r\n]*: ", r"(node\d): (your answer): ", r"(Try it on the other \d hosts)")
    while (which := child.expect([*questions, pexpect.EOF])) != len(questions):
        if which == 2:
            asked.setdefault("share", []).append(child.match[1])
            child.sendline("y")
            continue
        name, kind = child.match.groups()
        asked.setdefault(kind, []).append(name)
        if kind == "password" and len(asked[kind]) == 1:
            assert f"{name} says:\r\n│ " in child.before
            assert "Members of the lab only" in child.before
            assert "\x1b]0;" not in child.before
        elif kind == "your answer":
            assert re.search(rf"{name} says:\r\n(│ [^\n]*\n)*│ [^\n]*One-time password \(OATH\)", child.before)
        child.sendline("sesame" if kind == "password" else code(0))
    child.close()
    assert child.exitstatus == 0, child.before
    assert len(asked["password"]) == len(asked["share"]) == 1
    assert sorted(asked["your answer"]) == ["node1", "node2", "node3"]


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Callable[[User], dict[str, str]]]:
    """Make a Kerberos realm with the hosts of a cluster; returns the environment of its user, who has no ticket."""
    folder = new_folder(tmp_path / "krb5")
    port = free_port()
    (folder / "krb5.conf").write_text(KRB5.format(realm=REALM, port=port))
    (folder / "kdc.conf").write_text(KDC.format(realm=REALM, port=port, folder=folder))
    environment = {
        "KRB5_CONFIG": str(folder / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        "KRB5CCNAME": f"FILE:{folder}/tickets",
    }
    daemons: list[subprocess.Popen[bytes]] = []

    def admin(program: str, *words: str) -> None:
        done = ran([program, "-r", REALM, *words], env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr

    def make(me: User) -> dict[str, str]:
        admin("/usr/sbin/kdb5_util", "create", "-s", "-P", "master")
        admin("/usr/sbin/kadmin.local", "addprinc", "-randkey", "root")
        admin("/usr/sbin/kadmin.local", "ktadd", "-k", str(folder / "root.keytab"), "root")
        for host in me.cluster.hosts:
            admin("/usr/sbin/kadmin.local", "addprinc", "-randkey", f"host/{host.address}")
            admin("/usr/sbin/kadmin.local", "ktadd", "-k", str(host.home / "krb5.keytab"), f"host/{host.address}")
            (host.home / "krb5.conf").write_text((folder / "krb5.conf").read_text())
            host.run("mount --bind /root/krb5.conf /etc/krb5.conf", check=True)
            settings = "GSSAPIAuthentication yes\nGSSAPIStrictAcceptorCheck no\nPubkeyAuthentication no\n"
            sshd_takes(me, host, settings)
        words = ["/usr/sbin/krb5kdc", "-n", "-r", REALM]
        daemons.append(subprocess.Popen(words, env={**os.environ, **environment}, stderr=subprocess.DEVNULL))
        wait_for(lambda: _listens(port))
        return environment

    yield make
    for daemon in daemons:
        daemon.terminate()
        daemon.wait()


def _listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.kerberos
@pytest.mark.torch
def test_run_by_kerberos(user: Callable[..., User], realm: Callable[[User], dict[str, str]]) -> None:
    """A profile with `transport: ssh`: probe, start, mirror and end, by a ticket alone."""
    me = user(2, light=True)
    environment = realm(me)
    ssh_uses(me, "  GSSAPIAuthentication yes\n  PubkeyAuthentication no")
    script = me.script("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    profile = me.profile({"script": str(script)}, transport="ssh")
    refused = me.run(profile, env=environment, code=3)
    assert re.search(r"refused; the server accepts .*gssapi-with-mic", refused.stderr), refused.stderr
    assert "kinit" in refused.stderr
    keytab = Path(environment["KRB5_CONFIG"]).with_name("root.keytab")
    subprocess.run(["kinit", "-k", "-t", str(keytab), "root"], env={**os.environ, **environment}, check=True)
    running = me.run(profile, env=environment)
    assert {"rank 0 of 2", "rank 1 of 2"} <= {line.partition("│ ")[2] for line in running.stdout.splitlines()}


TOKEN = "/usr/lib/softhsm/libsofthsm2.so"


@pytest.mark.pkcs11
@pytest.mark.torch
def test_run_by_a_key_on_a_token(user: Callable[..., User]) -> None:
    """`PKCS11Provider` of ssh's configuration: ssh asks for the token's PIN, and no key in a file is let in."""
    me = user(1, light=True)
    (me.home / "tokens").mkdir()
    (me.home / "softhsm2.conf").write_text(f"directories.tokendir = {me.home}/tokens\n")
    environment = {"SOFTHSM2_CONF": str(me.home / "softhsm2.conf")}

    def made(*words: str) -> str:
        done = ran(words, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        return done.stdout

    made("softhsm2-util", "--init-token", "--free", "--label", "badge", "--so-pin", "4321", "--pin", "2468")
    pair = ("--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--label", "badge")
    made("pkcs11-tool", "--module", TOKEN, "--login", "--pin", "2468", *pair)
    (me.cluster.folder / "authorized_keys").write_text(made("ssh-keygen", "-D", TOKEN))
    ssh_uses(me, f"  PKCS11Provider {TOKEN}\n  IdentitiesOnly no")
    by_program(me)
    script = me.script("import os\nprint('rank', os.environ['RANK'])\n")
    words = me.command("run", me.profile({"script": str(script)}))
    environment = me.environment(**environment)
    child = pexpect.spawn(words[0], words[1:], env=environment, cwd=str(me.home), encoding="utf-8", timeout=120)
    child.expect(r"node1: .*PIN[^\r\n]*badge[^\r\n]*: ")
    child.sendline("2468")
    child.expect("rank 0")
    assert "2468" not in child.before
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before


@pytest.mark.parametrize("jump", [False, True], ids=["direct", "jump"])
def test_open_master_is_used_and_left_open(user: Callable[..., User], jump: bool) -> None:
    """No key is let in any more: `probe` and `top` work by the connection that the user has opened before."""
    me = user(2)
    by_program(me)
    place = me.cluster.folder / "master"
    if jump:
        me.cluster.ssh_config.write_text(f"Host node2\n  ProxyJump node1\n{me.cluster.ssh_config.read_text()}")
    me.cluster.ssh_config.write_text(f"Host node1\n  ControlPath {place}\n{me.cluster.ssh_config.read_text()}")
    with running([*me.cluster.ssh("node1")[:3], "-M", "-N", "node1"], stdin=subprocess.DEVNULL) as master:
        wait_for(place.exists)
        target = "node2" if jump else "node1"
        if not jump:
            sshd_takes(me, me.cluster[0], "PubkeyAuthentication no\n")
        assert f'"{target}"' in typed(me, "probe", "--json", target)
        assert target in typed(me, "top", "--once", target)
        assert master.poll() is None
        assert subprocess.run(me.cluster.ssh("node1", "true"), check=False).returncode == 0
    if not jump:
        failed = typed(me, "probe", target, code=3)
        assert "login as root@" in failed
    wait_gone(me.cluster)
