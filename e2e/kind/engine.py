"""Our own docker engine, for the lifetime of a cluster: dockerd in its own network and mount namespaces.

The machine's network is not changed. dockerd's bridges and firewall rules are in the namespace, and a veth pair
connects it with the machine, which uses an ordinary address for the API server. The namespace has no other
connection, so images are built outside and then loaded.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from e2e.kind import cache, traces
from e2e.kind.build import debian
from e2e.kind.progress import KindError, Log, tail

_RANGES = tuple(IPv4Network(text) for text in ("10.213.77.0/30", "192.168.213.0/30", "172.31.213.0/30"))
"""Ranges for the two ends of the veth pair: the first that this machine does not use. docker does not use them."""
SOCKET = traces.RUN / "docker.sock"
HOST = f"unix://{SOCKET}"
_LOG = "dockerd.log"
_ANSWERS_WITHIN = 60.0
_REMOVED_WITHIN = 120.0


def start(log: Log) -> None:
    """Start the engine and wait until it responds."""
    debian.install(log, "containerd", "runc", "iptables", "iproute2", "libdevmapper1.02.1")
    programs = _programs(log)
    traces.remember_machine()
    _make_network(log)
    runtime = traces.RUN / "runc"
    shutil.copy(Path(__file__).parent / "build/node/usr/local/sbin/runc", runtime)
    runtime.chmod(0o755)
    _wait_until_it_answers(_spawn(programs, runtime))


def stop() -> list[str]:
    """Remove the engine and everything that runs on it. Return descriptions of the things that remain."""
    if traces.processes():
        _remove_containers()
    return traces.remove()


def address() -> str:
    """Return the namespace's address, where the API server listens."""
    return str(traces.recall()["address"])


def outside() -> str:
    """Return this machine's address in the veth pair, which the nodes reach."""
    return str(IPv4Address(address()) - 1)


def alive() -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(SOCKET))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def environment() -> dict[str, str]:
    """Return the environment in which docker and kind use this engine and no proxy."""
    settings = {"DOCKER_HOST": HOST}
    if {"HTTPS_PROXY", "https_proxy"} & os.environ.keys():
        direct = ",".join(part for part in (os.environ.get("NO_PROXY"), address()) if part)
        settings |= {"NO_PROXY": direct, "no_proxy": direct}
    return settings


def docker(log: Log) -> Path:
    """Return the docker command that belongs to the engine."""
    return _programs(log) / "usr/bin/docker"


def _programs(log: Log) -> Path:
    """Unpack Debian's docker.io. Installing it would start another engine on some machines."""

    def build(out: Path) -> None:
        log.run("apt-get", "-q", "update")
        log.run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "docker.io", cwd=out)
        (package,) = out.glob("*.deb")
        log.run("dpkg", "-x", package, out)
        package.unlink()

    return cache.make("docker", cache.digest(debian.SUITE), build)


def _make_network(log: Log) -> None:
    """Create the namespace, its veth pair and its loopback. A bind mount keeps it without a process in it."""
    traces.NETNS.touch()
    log.run("unshare", f"--net={traces.NETNS}", "true")
    here, there = free_range(log).hosts()
    traces.remember(address=str(there))
    log.run("ip", "link", "add", traces.LINK, "type", "veth", "peer", "name", "outside", "netns", traces.NETNS)
    log.run("ip", "address", "add", f"{here}/30", "dev", traces.LINK)
    log.run("ip", "link", "set", traces.LINK, "up")
    # Not `ip netns exec`, which mounts another /sys without the cgroups.
    for words in (f"address add {there}/30 dev outside", "link set outside up", "link set lo up"):
        log.run("nsenter", f"--net={traces.NETNS}", "ip", *words.split())


def free_range(log: Log) -> IPv4Network:
    """Return a range that overlaps none of this machine's routes, so that no other address becomes unreachable."""
    words = log.read("ip", "-4", "route", "show", "table", "all").split()
    used = []
    for word in words:
        with contextlib.suppress(ValueError):  # the words between the addresses
            used.append(IPv4Network(word, strict=False))
    for candidate in _RANGES:
        if not any(candidate.overlaps(network) for network in used if network.prefixlen):
            return candidate
    tried = ", ".join(str(candidate) for candidate in _RANGES)
    raise KindError(
        f"This machine has routes to all of {tried}: free one of them for the cluster's network namespace."
    )


def _spawn(programs: Path, runtime: Path) -> "subprocess.Popen[bytes]":
    folders = [str(programs / folder) for folder in ("usr/sbin", "usr/bin", "usr/libexec/docker")]
    path = os.pathsep.join([*folders, "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    options = {
        "data-root": traces.data(),
        "exec-root": traces.RUN / "docker",
        "pidfile": traces.RUN / "dockerd.pid",
        "host": HOST,
        "cgroup-parent": f"/{traces.NAME}",
        "storage-driver": "overlay2",
        "oom-score-adjust": 0,  # the default lowers it, which needs CAP_SYS_RESOURCE
        "add-runtime": f"without-sys-resource={runtime}",
        "default-runtime": "without-sys-resource",
        "bip": "172.29.0.1/24",
        "default-address-pool": "base=172.30.0.0/16,size=24",
    }
    command = ["nsenter", f"--net={traces.NETNS}", "unshare", "--mount", "--propagation", "slave", "dockerd"]
    command += [f"--{name}={value}" for name, value in options.items()]
    with (cache.logs() / _LOG).open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )


def _wait_until_it_answers(process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _ANSWERS_WITHIN
    while not alive():
        if process.poll() is not None or time.monotonic() > deadline:
            log = cache.logs() / _LOG
            raise KindError(f"dockerd does not respond. Its log, {log}, ends with:\n{tail(log)}")
        time.sleep(0.1)


def _remove_containers() -> None:
    """Remove the containers with docker, which does it in the right order. `traces` kills remaining processes."""
    folder = cache.find("docker", cache.digest(debian.SUITE))
    if folder is None or not alive():
        return
    docker = [str(folder / "usr/bin/docker"), "-H", HOST]

    def ask(*words: str) -> list[str]:
        command = [*docker, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=_REMOVED_WITHIN).stdout.split()

    with contextlib.suppress(subprocess.TimeoutExpired):  # then `traces` kills the processes
        if containers := ask("ps", "-aq"):
            ask("rm", "-f", "-v", *containers)
