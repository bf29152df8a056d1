"""The command `python -m e2e.kind up | down | status | node`, which `make cluster-down` and `make kind-node` run.

`up` creates the bare cluster. `make cluster` also installs Kvasir in it, with `e2e.installed`.
"""

import argparse
import signal
import sys
from types import FrameType

from e2e.kind import cache, cluster, own, traces
from e2e.kind.progress import KindError, Progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.kind", description="A Kubernetes cluster of three nodes.")
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
        print("Interrupted. Everything that was started has been removed.", file=sys.stderr)
        return 130


def _up() -> int:
    """create a cluster and leave it running"""
    if cluster.current() is None:
        cluster.up()
    return _status()


def _down() -> int:
    """remove it and everything that belongs to it"""
    cluster.down()
    return 0


def _status() -> int:
    """show whether a cluster is running, and how to use it"""
    running = cluster.current()
    if running is None:
        found = traces.leftovers()
        print("No cluster is running." + "".join(f"\nleft behind: {item}" for item in found))
        return 1 if found else 0
    print(running.kubectl("get", "nodes"), end="")
    print(f"To use it:\n  {cluster.exports(running)}\n  kubectl get pods -A")
    return 0


def _node() -> int:
    """build the node image in advance, for a machine without a registry"""
    archive, _ = own.node(Progress(own.NODE_STEPS, cache.logs()))
    print(archive)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_COMMANDS = {"up": _up, "down": _down, "status": _status, "node": _node}


if __name__ == "__main__":
    sys.exit(main())
