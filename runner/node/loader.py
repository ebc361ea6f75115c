"""Receives the node program: the first thing that runs on a host, sent as one line and executed as `__main__`.

See docs/formats.md, "The remote command and the loader". folders.py and parcel.py are sent before it.
"""

import hashlib
import json
import os
import signal
import sys
import zlib
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from .folders import foreign, weakness
    from .parcel import is_whole, place, seal


def cache_folder() -> str:
    """A 0700 folder that no other user can have created or can replace: in the home, $XDG_RUNTIME_DIR or /tmp."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [os.path.expanduser("~/.cache/disttui")]
    if runtime:
        places.append(os.path.join(runtime, "disttui"))
    places.append("/tmp/disttui-%d" % os.getuid())
    problems = []
    for folder in map(os.path.abspath, places):
        try:
            problem = weakness(folder, make=True)
            if not problem and not os.lstat(folder).st_mode & 0o022:
                os.chmod(folder, 0o700)  # others could only read it
            problem = problem or foreign(folder)
            if not problem:
                probe = os.path.join(folder, ".%d" % os.getpid())
                with open(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    file.write(b"x" * 4096)
                os.unlink(probe)
                return folder
        except OSError as error:
            problem = "%s: %s" % (folder, error.strerror or error)
        problems.append(problem)
    raise SystemExit("no folder for the node program on this host: %s" % "; ".join(problems))


def with_bytecode(data: bytes, path: str) -> bytes:
    """Add bytecode of this Python next to the sources, which other versions of Python still read.

    Python does not cache bytecode of modules in a zip: each of a run's processes would compile it again.
    """
    import importlib.util
    import io
    import marshal
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            source = old.read(info)
            if info.filename.endswith(".py") and "/" in info.filename:
                code = compile(source, os.path.join(path, info.filename), "exec", dont_inherit=True)
                # PEP 552: a pyc that is never checked against its source, since the zip is sealed over both.
                head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source)
                new.writestr(zipfile.ZipInfo(info.filename + "c"), head + marshal.dumps(code))
            new.writestr(info, source)
    return out.getvalue()


def receive(path: str, digest: str, stdin: BinaryIO) -> None:
    """Read one zip from standard input, and place it at `path`."""
    try:
        data = zlib.decompress(stdin.read(int(stdin.readline())))
    except zlib.error:
        data = b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise SystemExit("the node program arrived damaged")
    data = seal(with_bytecode(data, path), digest)
    if not is_whole(path, digest):  # otherwise another host on this disk was faster, and imports from its file
        try:
            place(path, data)
        except OSError as error:
            said = error.strerror or error
            raise SystemExit("the node program cannot be stored: %s: %s; free space there" % (path, said)) from None


def load() -> None:
    """Send hello after the marker, receive what is missing, and run the node program."""
    stdin = sys.stdin.buffer
    hello = json.loads(stdin.readline())
    if sys.version_info < (3, 8):
        answer = {"python": sys.version.split()[0], "error": "Python 3.8 or later is needed"}
    else:
        folder = cache_folder()
        paths = {
            kind: os.path.join(folder, "%s-%s.zip" % (kind, hello[kind][:16]))
            for kind in ("node", "train")
            if hello.get(kind)
        }
        missing = [kind for kind in paths if not is_whole(paths[kind], hello[kind])]
        answer = {"python": sys.version.split()[0], "missing": missing, "node": paths["node"]}
    # From here on the frames own standard output; a stray print must not break them.
    stdout = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    stdout.write(("\n%s %s\n" % (hello["marker"], json.dumps(answer))).encode())
    if "error" in answer:
        return
    # Seconds that receiving the zips may take: a viewer that is cut off may never send an end of file
    signal.alarm(600)
    for kind in missing:
        receive(paths[kind], hello[kind], stdin)
    signal.alarm(0)  # from here on missing beats show a lost viewer
    sys.path.insert(0, paths["node"])
    from _disttui.node.serve.channel import main  # type: ignore[import-not-found]

    main(paths["node"], paths.get("train"), stdin, stdout)


load()
