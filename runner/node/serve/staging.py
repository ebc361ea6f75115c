"""Copies data from a host's path or an address into the objects next to its destination (docs/formats.md, "Data")."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import ssl
import stat
import urllib.error
import urllib.request
import zlib
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

from ...protocol import tree
from ...protocol.objects import Store
from .. import journal
from ..problem import Problem
from ..supervise.steps import CommandError, EndedError, Steps, alone
from .syncing import check_room, data_folder, explained, full_path, mark, open_store

if TYPE_CHECKING:
    from ...protocol.requests import Staged, StageRequest

_PIECE = 1 << 20
_MOST = 3 << 20
"""Longest manifest in an answer, in characters."""
_NONE: Staged = {"tree": "", "manifest": "", "file": False}


def stage(request: StageRequest, cache: str, tell: Callable[[str], None]) -> Staged:
    """Store the objects of a source next to its destination, and return its manifest.

    Raises:
        Problem: The source cannot be read or fetched.
        EndedError: The viewer is gone.
        OSError: The folder cannot be written.
    """
    target = full_path(request["to"])
    top, source = data_folder(target), request["source"]
    store = open_store(top)
    name = tree.digest(f"{source} {request['sha256']} {target}".encode())[:32]
    noted = os.path.join(top, f"{name}.source")
    with explained(top), alone(top, name, f"data-{name}", 0, tell):
        if "://" not in source:
            return _taken(store, os.path.realpath(full_path(source)), target, noted)
        known = journal.read_object(noted)
        if store.has(str(known.get("tree")), int(str(known.get("size", 0)))):
            return _answer(store.read(str(known["tree"]), tree.MOST_BYTES), bool(known.get("file")))
        if not request["fetch"]:
            return _NONE
        fetched = os.path.join(top, name)  # what arrived before an interruption is there
        os.makedirs(fetched, 0o700, exist_ok=True)
        os.environ.update(request["env"])
        steps = Steps(os.path.join(top, f"{name}.log"), f"data-{name}", 0, os.environ, top, tell)
        try:
            path = _fetch(request, fetched, steps, tell)
        finally:
            steps.close()
        found = _answer(_manifest(store, path, target, {}, share=True), os.path.isfile(path))
        shutil.rmtree(fetched, ignore_errors=True)
        manifest = store.read(found["tree"], tree.MOST_BYTES)
        journal.write_json(noted, {"tree": found["tree"], "size": len(manifest), "file": found["file"]})
        return found


def _answer(manifest: bytes, single: bool) -> Staged:
    shown = base64.b64encode(zlib.compress(manifest)).decode()
    if len(shown) > _MOST:
        raise Problem("too many files", "pack them into archives, or list its folders separately")
    return {"tree": tree.digest(manifest), "manifest": shown, "file": single}


def _taken(store: Store, path: str, target: str, noted: str) -> Staged:
    """Store a path of this host; nothing is copied if it is the destination itself."""
    if not os.path.exists(path):
        raise Problem(f"{path} does not exist", "correct `from`")
    known = journal.read_object(noted)
    manifest = _manifest(store, path, target, known, share=path == os.path.realpath(target))
    journal.write_json(noted, known)
    if path == os.path.realpath(target):
        mark(target, tree.digest(manifest), os.lstat(target).st_ino, [])
    return _answer(manifest, os.path.isfile(path))


def _manifest(store: Store, top: str, target: str, known: Dict[str, object], *, share: bool) -> bytes:
    """Store all files of a path as objects; returns its manifest, which is also stored.

    Args:
        known: Name → status and hash; from an earlier call, and replaced by those of this one.
        share: Use the files themselves as objects.
    """
    single, entries, kept = not os.path.isdir(top), [], dict(known)
    known.clear()
    for path in [top] if single else _below(top):
        name = os.fsencode(os.path.basename(target) if single else os.path.relpath(path, top))
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode):
            link = os.readlink(os.fsencode(path))
            if not tree.leads_inside(name, link):
                raise Problem(f"{_shown(path)} leads out of {top}", "replace this link by its target")
            entries.append(tree.link(name, link))
            continue
        if not stat.S_ISREG(seen.st_mode) or tree.flaw(name):
            raise Problem(f"{_shown(path)} cannot be copied: not a file", "remove it")
        status = [seen.st_ino, seen.st_size, seen.st_mtime_ns]
        before = kept.get(_shown(path))
        found = before[1] if isinstance(before, list) and before[0] == status else ""
        if not store.has(found, seen.st_size):
            found = _object(store, path, share)
            if [os.lstat(path).st_ino, os.lstat(path).st_size, os.lstat(path).st_mtime_ns] != status:
                raise Problem(f"{_shown(path)} changed while being read", "start again when it is complete")
        known[_shown(path)] = [status, found]
        entries.append(tree.Entry(name, "x" if seen.st_mode & 0o100 else "f", seen.st_size, found))
    if len(entries) > tree.MOST_FILES or not entries:
        raise Problem(f"{top} has {len(entries):,} files", f"expected 1 to {tree.MOST_FILES:,}")
    manifest = tree.encode(entries)
    store.add(manifest)
    return manifest


def _object(store: Store, path: str, share: bool) -> str:
    """Link or copy a file into the store; returns the object's name."""
    if share:
        digest = _sha256(path)
        if store.adopt(path, digest):
            return digest
    check_room(store.folder, os.path.getsize(path))
    with open(path, "rb") as file, store.writer() as writer:
        shutil.copyfileobj(file, writer, _PIECE)
        return writer.done()


def _sha256(path: str) -> str:
    seen = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_PIECE):
            seen.update(data)
    return seen.hexdigest()


def _below(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        yield from (os.path.join(folder, name) for name in (*names, *links))


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _fetch(request: StageRequest, folder: str, steps: Steps, tell: Callable[[str], None]) -> str:
    """Fetch an address into a folder; returns the resulting path. Raises Problem, EndedError, OSError."""
    source = request["source"]
    if request["size"]:
        check_room(folder, request["size"])
    if source.startswith("http"):
        path = os.path.join(folder, "file")
        _download(request, path, steps, tell)
    else:
        words, path = _tool(source, folder)
        try:
            steps.run(words)
        except CommandError as error:
            raise Problem(f"`{' '.join(words[:3])} …` {error.ended}\n{error.said}", "correct it") from None
        shutil.rmtree(os.path.join(path, ".cache"), ignore_errors=True)  # metadata of hf
    if request["sha256"]:
        if not os.path.isfile(path):
            raise Problem("this is a folder", "remove `sha256`")
        if (found := _sha256(path)) != request["sha256"]:
            os.unlink(path)
            raise Problem(f"its SHA-256 is {found}, not the profile's", "correct `sha256`")
    return path


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    """Someone on the network could change any answer without TLS, also a redirect back to https."""

    def redirect_request(self, *words: Any) -> Optional[urllib.request.Request]:
        if not words[-1].startswith("https:"):
            raise Problem("the server redirects to an address without https", "set its sha256")
        return super().redirect_request(*words)


def _download(request: StageRequest, path: str, steps: Steps, tell: Callable[[str], None]) -> None:
    """Download a file; continues an interrupted attempt if the content is known."""
    begun = os.path.getsize(path) if request["sha256"] and os.path.exists(path) else 0
    asked = urllib.request.Request(request["source"])  # noqa: S310
    asked.add_header("Range", f"bytes={begun}-")
    opener = urllib.request.build_opener(*([] if request["sha256"] else [_OnlyHttps]))
    try:
        # Seconds for a server to answer, and between two pieces
        with opener.open(asked, timeout=60.0) as answer:
            begun = begun if answer.status == 206 else 0
            more = int(answer.headers.get("Content-Length") or 0)
            check_room(os.path.dirname(path), more)
            with open(path, "ab" if begun else "wb") as file:
                while data := answer.read(_PIECE):
                    file.write(data)
                    if steps.is_over(0):
                        raise EndedError
                    tell(f"{file.tell() / 1e6:,.1f} of {(begun + more) / 1e6:,.1f} MB")
                if more and file.tell() != begun + more:
                    raise ConnectionError("the connection was cut")
    except urllib.error.HTTPError as error:
        if error.code != 416 or not begun:  # all of it has arrived
            raise Problem(f"the server answered {error.code} {error.reason}", "correct `from`") from None
    except (urllib.error.URLError, HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        why = getattr(error, "reason", error)
        raise Problem(f"cannot be fetched: {why}", "use a path on your machine or a host") from None


def _tool(source: str, folder: str) -> Tuple[List[str], str]:
    """The command that fetches an address from an object store or Hugging Face, and the path that it creates."""
    kind, _, rest = source.partition("://")
    many, path = source.endswith("/"), os.path.join(folder, "file")

    def program(*names: str) -> str:
        found = next((one for one in map(shutil.which, names) if one), None)
        if found is None:
            raise Problem(f"{kind}:// needs {' or '.join(names)}, which this host lacks", "install it there")
        return found

    if kind == "s3":
        tool = program("s5cmd", "aws")
        own = [tool] if os.path.basename(tool) == "s5cmd" else [tool, "s3"]
        if not many:
            return [*own, "cp", source, path], path
        return [*own, "sync", f"{source}*" if len(own) == 1 else source, f"{folder}/"], folder
    tool, words = program("hf", "huggingface-cli"), rest.strip("/").split("/")
    kinds = {"datasets": "dataset", "spaces": "space"}
    of = kinds.get(words[0], "model")
    words = words[1:] if words[0] in kinds else words
    named, _, revision = "/".join(words[:2]).partition("@")
    inside = "/".join(words[2:])
    chosen = [] if not inside else ["--include", f"{inside}/*"] if many else [inside]
    at = ["--revision", revision] if revision else []
    made = os.path.join(folder, inside)
    return [tool, "download", named, *chosen, "--repo-type", of, *at, "--local-dir", folder], made
