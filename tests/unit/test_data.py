"""`data` on hosts that this machine plays: what is taken from a path, fetched from an address, and refused."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttui.runner.api.carrying import _Staging, stage
from disttui.runner.api.environments import collect_requirements
from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.link import Link
from disttui.runner.profile.effects import effect_lines
from disttui.runner.profile.load import load, parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.protocol import tree
from disttui.runner.protocol.objects import Store
from disttui.runner.sync.collect import Wanted, collect
from disttui.runner.sync.transfer import TreeParcel, send
from tests.files import new_file, new_folder
from tests.unit.test_sync_transfer import Host, host

__all__ = ["host"]  # a fixture


def staged(host: Host, source: Path | str, to: str = "~/data/x", **more: Any) -> Any:
    request = {"source": str(source), "to": to, "size": 0, "sha256": "", "fetch": True, "env": {}, **more}
    return host.open().stream("stage", lambda item: None, **request).result(120)


def place(host: Host, links: list[Link], to: str = "~/data/x", **wanted: Any) -> Path:
    """Send the host's folder as data."""
    found = collect(Wanted(host.folder, whole=True, **wanted), host.store, host.tmp_path / "cache")
    send(
        TreeParcel(found.sha256, found.manifest, host.store), links, run="a-1", run_dir="~/runs", to=to,
        reopen=host.open, tell=lambda node, kind, note: host.told.append(note), data="folder",
    )  # fmt: skip
    return Path(to).expanduser()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{to: ~/x, from: 'ftp://a/b'}", "expected https://…, s3://… or hf://…, a path, or host:/path"),
        ("{to: ~/x, from: 'hf://-x/b'}", "expected https://…, s3://… or hf://…, a path, or host:/path"),
        ("{to: ~/x, from: 'http://a/b'}", "use https://, or set its sha256"),
        ("{to: ~/x, from: 'node9:/b'}", "'node9' is not a host of the profile, expected one of node1"),
        ("{to: ~/x, from: a, sha256: A}", "expected 64 hexadecimal digits"),
        ("{to: ~/x, from: a, size: 5}", "expected a size like 500MB"),
        ("{to: ~/, from: a}", "expected a path with a name at its end"),
        ("{to: /x/../y, from: a}", "expected a path with a name at its end"),
        ("{to: ~/x}", "'from' is missing, expected its source"),
        ("{to: ~/x, form: a}", "did you mean 'from'?"),
        ("{to: ~/x, from: a}, {to: ~/x/y, from: b}", "is inside, the path of other data"),
    ],
)
def test_an_entry_that_cannot_be_used_is_an_error_with_its_line(data: str, said: str) -> None:
    with pytest.raises(ProfileErrors) as caught:
        parse(f"disttui: 1\nhosts: [node1]\njob: {{script: x}}\ndata: [{data}]\n", "x.yaml")
    assert said in str(caught.value) and str(caught.value).startswith("x.yaml:4:")


def test_where_data_goes_is_among_the_effects_of_a_profile() -> None:
    data = "[{to: ~/x, from: a}, {to: ~/y, from: 'node1:/b'}, {to: ~/z, from: 's3://b/k'}]"
    profile = parse(f"disttui: 1\nhosts: [node1]\njob: {{script: x}}\ndata: {data}\n", "x.yaml")
    shown = [text for key, text in effect_lines(profile) if key == "data"]
    assert shown == [
        "on node1, copied from this machine: a '~/x'",
        "on node1: node1:/b '~/y'",
        "on node1: s3://b/k '~/z'",
    ]


def test_names_of_any_bytes_arrive_and_links_stay_links(host: Host) -> None:
    (host.home / "set/sub").mkdir(parents=True)
    (host.home / "set" / os.fsdecode(b"new\nline \xff")).write_bytes(b"1")
    (host.home / "set/sub/link").symlink_to("../run")
    (host.home / "set/folder").symlink_to("sub")
    new_file(host.home / "set/run", "true\n", 0o755)
    found = staged(host, "~/set")
    entries = {one.path: one.kind for one in tree.decode(found["manifest"])}
    assert entries == {b"folder": "l", b"new\nline \xff": "f", b"run": "x", b"sub/link": "l"}
    link = host.open()
    request = {"run": "a-1", "tree": found["tree"], "size": len(found["manifest"]), "to": "~/data/x", "data": "folder"}
    assert link.request("sync", **request)["placed"]
    made = host.home / "data/x"
    assert (made / os.fsdecode(b"new\nline \xff")).read_bytes() == b"1"
    assert (made / "folder/link").readlink() == Path("../run") and (made / "run").stat().st_mode & 0o100


def test_special_files_and_links_out_are_refused_by_name(host: Host) -> None:
    (host.home / "set").mkdir()
    (host.home / "set/out").symlink_to("/etc/passwd")
    with pytest.raises(HostError, match="set/out leads out of"):
        staged(host, "~/set")
    (host.home / "set/out").unlink()
    os.mkfifo(host.home / "set/pipe")
    with pytest.raises(HostError, match="set/pipe cannot be copied: not a file"):
        staged(host, "~/set")
    with pytest.raises(HostError, match="none does not exist"):
        staged(host, "~/none")


def test_data_in_place_is_linked_and_changes_are_reread(host: Host) -> None:
    (host.home / "data/x").mkdir(parents=True)
    (host.home / "data").chmod(0o700)
    (host.home / "data/x/a").write_text("one")
    first = staged(host, "~/data/x")
    assert (host.home / "data/x/a").stat().st_nlink == 2
    assert staged(host, "~/data/x") == first
    (host.home / "data/x/b").write_text("two")
    second = staged(host, "~/data/x")
    assert len(tree.decode(second["manifest"])) == 2
    (host.folder / "other").write_text("3")
    with pytest.raises(HostError, match="exists, and is not from disttui"):
        place(host, [host.open()])
    assert sorted(path.name for path in (host.home / "data/x").iterdir()) == ["a", "b"], "it is the user's own"


def test_a_new_version_replaces_the_whole_old_one(host: Host) -> None:
    (host.folder / "a").write_text("one")
    (host.folder / "b").write_text("two")
    made = place(host, [host.open()])
    with (made / "a").open() as before:
        (host.folder / "a").write_text("new")
        (host.folder / "b").unlink()
        place(host, [host.open()])
        assert before.read() == "one", "who has it open reads on"
    assert {path.name: path.read_text() for path in made.iterdir()} == {"a": "new"}
    assert sorted(path.name for path in made.parent.iterdir()) == [".disttui-data", "x"]


def test_git_and_size_leave_nothing_out_but_secrets_are_named(host: Host) -> None:
    (host.folder / ".git").mkdir()
    (host.folder / ".gitignore").write_text("*\n")
    (host.folder / "checkpoints").mkdir()
    (host.folder / "checkpoints/a.ckpt").write_text("1")
    (host.folder / "id_rsa").write_text("1")
    found = collect(Wanted(host.folder, whole=True, most=0), host.store, host.tmp_path / "cache")
    assert [one.path for one in found.entries] == [b".gitignore", b"checkpoints/a.ckpt"]
    assert [(one.path, one.why) for one in found.omitted] == [("id_rsa", "looks like a secret")]
    alone = collect(Wanted(host.folder, whole=True, only="id_rsa"), host.store, host.tmp_path / "cache")
    assert [one.path for one in alone.entries] == [b"id_rsa"], "it was named"


@pytest.fixture
def tools(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of the host that write down their words, and make a file in the last one's place."""
    folder = new_folder(host.tmp_path / "bin")
    for name in ("aws", "hf"):
        path = folder / name
        path.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {folder}/asked\n'
            'for last; do :; done\ncase "$last" in */file) echo 1 > "$last";; *) mkdir -p "$last/part"; '
            'echo 1 > "$last/part/a"; echo 2 > "$last/b"; mkdir "$last/.cache"; echo 3 > "$last/.cache/c";; esac\n'
        )
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("source", "words", "names"),
    [
        ("s3://bucket/a/x.bin", "aws s3 cp s3://bucket/a/x.bin {}/file", [b"x"]),
        ("s3://bucket/a/", "aws s3 sync s3://bucket/a/ {}/", [b"b", b"part/a"]),
        ("hf://datasets/o/n", "hf download o/n --repo-type dataset --local-dir {}", [b"b", b"part/a"]),
        ("hf://o/n@v1/part/a", "hf download o/n part/a --repo-type model --revision v1 --local-dir {}", [b"x"]),
        ("hf://o/n/part/", "hf download o/n --include part/* --repo-type model --local-dir {}", [b"a"]),
    ],
)
def test_the_tools_of_a_host_fetch_addresses(
    host: Host, tools: Path, source: str, words: str, names: list[bytes]
) -> None:
    assert staged(host, source, fetch=False)["tree"] == ""
    found = staged(host, source)
    assert [one.path for one in tree.decode(found["manifest"])] == names
    asked = (tools / "asked").read_text().split("\n")
    folder = asked[0].split()[-1].removesuffix("/").removesuffix("/file")
    assert asked == [words.format(folder), ""] and folder.startswith(f"{host.home}/data/.disttui-data/")
    assert staged(host, source, fetch=False) == found == staged(host, source), "it is not fetched again"
    assert (tools / "asked").read_text().count("\n") == 1


def test_a_failing_tool_is_shown_with_its_words(host: Host, tools: Path) -> None:
    (tools / "aws").write_text("#!/bin/sh\necho no such bucket; exit 4\n")
    with pytest.raises(HostError, match=r"aws s3 cp …` ended with exit code 4\n. no such bucket"):
        staged(host, "s3://bucket/x")


class Server:
    """A web server of this machine, which gives ranges and may cut."""

    def __init__(self, content: bytes) -> None:
        self.content, self.cut, self.asked = content, len(content), list[str | None]()
        self.elsewhere = ""
        made = partial(self._handler(), self)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), made)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/x.bin"

    @staticmethod
    def _handler() -> Any:
        class Handler(BaseHTTPRequestHandler):
            def __init__(self, server: Server, *words: Any) -> None:
                self.own = server
                super().__init__(*words)

            def do_GET(self) -> None:
                self.own.asked.append(self.headers["Range"])
                if self.own.elsewhere:
                    self.send_response(302)
                    self.send_header("Location", self.own.elsewhere)
                    self.end_headers()
                    return
                begin = int(str(self.headers["Range"])[len("bytes=") : -1])
                self.send_response(206)
                self.send_header("Content-Length", str(len(self.own.content) - begin))
                self.end_headers()
                self.wfile.write(self.own.content[begin : self.own.cut])

            def log_request(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(os.urandom(3 << 20))
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_cut_download_is_continued_where_its_content_is_known(host: Host, server: Server) -> None:
    sha256 = hashlib.sha256(server.content).hexdigest()
    server.cut = 2 << 20
    with pytest.raises(HostError, match="cannot be fetched: the connection was cut"):
        staged(host, server.address, sha256=sha256)
    server.cut = len(server.content)
    staged(host, server.address, sha256=sha256)
    assert server.asked == ["bytes=0-", f"bytes={2 << 20}-"]
    store = Store(str(host.home / "data/.disttui-data/objects"))
    assert store.has(sha256, len(server.content))
    assert not [
        path for path in (host.home / "data/.disttui-data").iterdir() if path.is_dir() and path.name != "objects"
    ]


def test_other_content_and_an_address_without_https_are_refused(host: Host, server: Server) -> None:
    """Someone on the network can answer for an address without https, and lead back to one with it."""
    server.elsewhere = "http://127.0.0.1:1/x.bin"
    with pytest.raises(HostError, match="redirects to an address without https"):
        staged(host, server.address)
    server.elsewhere = ""
    with pytest.raises(HostError, match="its SHA-256 is"):
        staged(host, server.address, sha256="0" * 64)


def test_a_host_passes_on_only_the_file_with_the_given_hash() -> None:
    """It may list the right one beside its own."""
    good, evil = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()
    profile = parse(
        f"disttui: 1\nhosts: [a]\njob: {{script: x}}\ndata: [{{to: ~/d/x, from: 'a:/x', sha256: {good}}}]", "p.yaml"
    )

    def wanted(*entries: tree.Entry, file: bool = True) -> bool:
        step = _Staging.__new__(_Staging)
        step._data = profile.data[0]
        return step._is_wanted({"tree": "", "manifest": tree.encode(entries), "file": file})

    right = tree.Entry(b"x", "f", 1, good)
    assert wanted(right) and not wanted(right, file=False)
    assert not wanted(tree.Entry(b"x", "f", 1, evil)) and not wanted(tree.Entry(b"y", "f", 1, good))
    assert not wanted(tree.Entry(b"!", "f", 1, good), tree.Entry(b"x", "f", 1, evil))


@pytest.mark.parametrize("key", ["data", "wheels"])
def test_a_link_in_a_team_library_sends_no_other_file(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_file(tmp_path / "private/x.whl", "secret")
    team = new_folder(tmp_path / "team")
    (team / "x.whl").symlink_to(tmp_path / "private/x.whl")
    new_file(team / "requirements.txt", "x\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    new_file(tmp_path / "config/disttui/config.yaml", f"libraries: [{{name: team, folder: {team}}}]\n")
    job = "{script: x.py, environment: {from: requirements.txt, wheels: .}}" if key == "wheels" else "{script: x.py}"
    data = "\ndata: [{to: ~/x, from: x.whl}]" if key == "data" else ""
    profile = load(new_file(team / "p.yaml", f"disttui: 1\nhosts: [a]\njob: {job}{data}\n"))
    viewer: Any = SimpleNamespace(environ=os.environ)
    run: Any = None
    with pytest.raises(InputError, match="a link leads out of the library team"):
        if key == "wheels":
            collect_requirements(viewer, profile)
        else:
            stage(viewer, run, profile, [], lambda node: pytest.fail("a link"), lambda *_: None)


def test_a_folder_that_others_can_write_takes_no_data(host: Host, tmp_path: Path) -> None:
    new_folder(tmp_path / "open", 0o777)
    (host.folder / "a").write_text("1")
    with pytest.raises(HostError, match="would not be safe from other users"):
        place(host, [host.open()], to=str(tmp_path / "open/x"))
    assert list((tmp_path / "open").iterdir()) == []
