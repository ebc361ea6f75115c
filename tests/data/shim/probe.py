"""Writes what a script can see of itself; run bare and under the shim, both must be equal."""

import argparse
import atexit
import inspect
import json
import linecache
import multiprocessing
import os
import pickle
import re
import sys
import threading


class Thing:
    def __init__(self, value):
        self.value = value


def double(thing):
    return type(thing).__module__, thing.value * 2, __name__, sys.argv[2:], sys.path


def relative_import():
    try:
        from . import sibling

        return sibling.NAME
    except ImportError as error:
        return "%s: %s" % (type(error).__name__, error)


def own_module():
    # The folder holds a profile.py and a secrets.py that shadow the standard library's.
    import profile
    import secrets

    return profile.OWNER, secrets.OWNER


def in_worker(method, function, *args):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(function, args)


def look():
    main = sys.modules["__main__"]
    seen = {
        "argv": sys.argv,
        "path": sys.path,
        "main": {
            name: re.sub(" at 0x[0-9a-f]+", "", repr(value))
            if name not in ("__loader__", "__builtins__")
            else type(value).__qualname__
            for name, value in vars(main).items()
            if name.startswith("__")
        },
        "is main": vars(main) is globals(),
        "prog": argparse.ArgumentParser().prog,
        "relative": relative_import(),
        "own": own_module(),
        "pickle": pickle.loads(pickle.dumps(Thing(3))).value,
        "pickled name": Thing.__module__,
        "source": inspect.getsource(Thing) if inspect.getsourcefile(Thing) else None,
        "line": linecache.getline(__file__, 1),
        "threads": [thread.name for thread in threading.enumerate()],
        "active": threading.active_count(),
        "streams": [sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.line_buffering, sys.stdin.read()],
        "flags": repr(sys.flags),
        "hook": sys.excepthook is sys.__excepthook__,
        "tracing": [sys.gettrace() is None, sys.getprofile() is None],
        "env": dict(os.environ),
        "orig_argv": getattr(sys, "orig_argv", None),
        "cwd": os.getcwd(),
    }
    seen["fork"] = in_worker("fork", double, Thing(21))
    # A spawned worker cannot find the __main__ of a zip, a folder or a package: Python's own limit.
    if os.path.basename(__file__) == "probe.py" and os.path.isfile(__file__):
        seen["spawn"] = in_worker("spawn", double, Thing(21))
    else:
        seen["spawn"] = in_worker("spawn", os.getcwd)
    return seen


if __name__ == "__main__":
    where = sys.argv[1]
    # What the interpreter shows of the zip or the folder it has been given is all the script's own.
    atexit.register(lambda: print("leaving", Thing.__name__, json.__name__))
    result = look()
    with open(where % os.environ.get("RANK", "0"), "w") as file:
        json.dump(result, file, indent=1, default=repr)
