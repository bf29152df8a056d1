"""`python -m e2e.kind up | down | status | node`: what `make cluster-down` and `make kind-node` call.

`up` makes the bare cluster; `make cluster` has Kvasir installed in it as well, by `e2e.installed`.
"""

import argparse
import signal
import sys
from types import FrameType

from e2e.kind import cache, cluster, own, traces
from e2e.kind.progress import KindError, Progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.kind", description="A real Kubernetes of three nodes.")
    parser.add_argument(
        "command",
        choices=sorted(_COMMANDS),
        help="; ".join(f"{name}: {call.__doc__}" for name, call in _COMMANDS.items()),
    )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _COMMANDS[parser.parse_args().command]()
    except KindError as error:
        print("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; everything that was started is gone.", file=sys.stderr)
        return 130


def _up() -> int:
    """make a cluster and leave it up"""
    if cluster.current() is None:
        cluster.up()
    return _status()


def _down() -> int:
    """remove it and every trace of it"""
    cluster.down()
    return 0


def _status() -> int:
    """tell whether one is up, and how to use it"""
    running = cluster.current()
    if running is None:
        found = traces.leftovers()
        print("No cluster is up." + "".join(f"\nleft behind: {item}" for item in found))
        return 1 if found else 0
    print(running.kubectl("get", "nodes"), end="")
    print(f"To use it:\n  {cluster.exports(running)}\n  kubectl get pods -A")
    return 0


def _node() -> int:
    """make the node image of a machine without a registry, ahead of a cluster"""
    archive, _ = own.node(Progress(own.NODE_STEPS, cache.logs()))
    print(archive)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_COMMANDS = {"up": _up, "down": _down, "status": _status, "node": _node}


if __name__ == "__main__":
    sys.exit(main())
