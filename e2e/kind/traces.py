"""Finds and removes everything that a cluster may leave on the machine.

Its processes are identified by their network namespace (dockerd and its helpers) or by their cgroup (everything
that runs in a node), and are killed by PID.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from e2e.kind import cache

NAME = "kvasir-kind"
RUN = Path("/run") / NAME
"""Sockets, PIDs and the network namespace. Not in the cache, because a socket's path is limited to 107 bytes."""
NETNS = RUN / "netns"
LINK = "kvasir0"
"""The machine's end of the veth pair."""
_MADE_BY_DOCKER = ("/etc/docker", "/run/docker", "/run/containerd", "/run/xtables.lock", "/lib/modules")
_STATE = RUN / "state.json"
_ENDS_WITHIN = 20.0


def data() -> Path:
    """Return the folder of docker's data: node image, nodes and volumes. It is removed with the cluster."""
    return cache.folder() / "docker-data"


def remember(**facts: object) -> None:
    """Record facts that `remove` needs, before the things exist."""
    _STATE.write_text(json.dumps(recall() | facts))


def remember_machine() -> None:
    """Record which of the folders that docker creates did not exist before."""
    RUN.mkdir(parents=True)
    remember(made=[path for path in _MADE_BY_DOCKER if not os.path.lexists(path)])


def recall() -> dict[str, object]:
    try:
        state: dict[str, object] = json.loads(_STATE.read_text())
    except (OSError, ValueError):
        return {}
    return state


def leftovers() -> list[str]:
    """Return descriptions of everything that a running or dead cluster has left on the machine."""
    if sys.platform != "linux":
        return []
    found = [f"process {pid}: {_command(pid)}" for pid in processes()]
    found += [f"mount {path}" for path in _mounts()]
    found += [f"cgroup {path}" for path in _cgroups()]
    found += [f"network interface {LINK}"] * _link_exists()
    found += [str(path) for path in (*_made(), RUN, data()) if path.exists()]
    return found


def remove() -> list[str]:
    """Kill and remove all of it. Return descriptions of the things that remain."""
    _end(processes())
    subprocess.run(["ip", "link", "del", LINK], capture_output=True)
    for mount in _mounts():
        subprocess.run(["umount", mount], capture_output=True)
    _remove_cgroups()
    for made in _made():
        _remove_made(made)
    shutil.rmtree(data(), ignore_errors=True)
    # The file that lists our things is removed last, and only if nothing else remains.
    remaining = [item for item in leftovers() if item != str(RUN)]
    if not remaining:
        shutil.rmtree(RUN, ignore_errors=True)
    return remaining


def processes() -> list[int]:
    """Return the PIDs in our network namespace or in our cgroups."""
    namespace = _namespace()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                ours = namespace is not None and (entry / "ns/net").stat().st_ino == namespace
                if ours or f":/{NAME}" in (entry / "cgroup").read_text():
                    found.append(int(entry.name))
    return found


def _namespace() -> int | None:
    """Return the inode of our network namespace, or None.

    It is read from the mount, because a recorded number may belong to another namespace after a reboot.
    """
    return NETNS.stat().st_ino if os.path.ismount(NETNS) else None


def _end(pids: list[int]) -> None:
    """Send SIGTERM first, because dockerd stops its own processes, and then SIGKILL."""
    _thaw()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _ENDS_WITHIN
        while pids and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.2)
            pids = processes()


def _thaw() -> None:
    """Thaw the containers. An interrupted runc may leave them frozen, and then they cannot be killed."""
    for cgroup in _cgroups():
        for name, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            for state in cgroup.rglob(name):
                with contextlib.suppress(OSError):
                    state.write_text(thawed)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")[:80].strip()
    return "(ended)"


def _mounts() -> list[str]:
    """Return the mount points below our folders, deepest first."""
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    ours = [path for path in targets if any(Path(path).is_relative_to(base) for base in (RUN, data()))]
    return sorted(ours, key=len, reverse=True)


def _cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / NAME, *root.glob(f"*/{NAME}")) if path.is_dir()]


def _remove_cgroups() -> None:
    """Remove our cgroups. The kernel keeps one for a moment after its last process has ended."""
    deadline = time.monotonic() + _ENDS_WITHIN
    while (cgroups := _cgroups()) and time.monotonic() < deadline:
        for path in cgroups:
            for folder, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        time.sleep(0.05)


def _link_exists() -> bool:
    return Path(f"/sys/class/net/{LINK}").exists()


def _made() -> list[Path]:
    made = recall().get("made")
    return [Path(str(path)) for path in made if os.path.lexists(path)] if isinstance(made, list) else []


def _remove_made(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
