"""Cores, memory and instruction sets that this process may use, by cgroup v1 or v2 and /proc. No torch.

A container sees all of the node, so the limits of the cgroup decide.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# "no limit" in cgroup v1 is near 2**63
_UNLIMITED = 2**60


_NANOSECOND = 1e-9


@dataclass(frozen=True)
class CpuUse:
    """Sums in seconds; the difference of two readings gives a rate."""

    waited: Mapping[int, float]  # by thread: ready to run without a core
    others: float  # of other processes on this process's cores

    def waited_since(self, before: "CpuUse") -> float:
        # A thread that ends takes its sum along.
        return sum(max(0.0, waited - before.waited.get(thread, 0.0)) for thread, waited in self.waited.items())


def cpu_use(root: Path = Path("/")) -> CpuUse | None:
    try:
        return CpuUse(waited=_waited(root), others=_busy(root) - time.process_time())
    except (OSError, ValueError, IndexError):
        return None


def openmp_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number per level
    return int(first) if first.isdecimal() and int(first) > 0 else None


def openmp_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    # How long a thread spins before it sleeps.
    return {name: value for name, value in sorted(environ.items()) if name.startswith(("OMP_", "GOMP_", "KMP_"))}


def cgroup_cores(root: Path = Path("/")) -> int:
    """Return the cores of affinity and CPU quota, rounded down, at least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _folders("cpu", root):
        quota = _quota(folder)
        if quota is not None:
            cores = min(cores, quota)
    return max(1, int(cores))


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of the machine, or of this process's cgroup if that has less."""
    limit = _meminfo("MemTotal", root)
    for folder in _folders("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _number(folder / name)
            if value is not None and value < _UNLIMITED:
                limit = min(limit, value)
    return limit


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can be taken without swapping or reaching a cgroup's limit.

    As in the kubelet's working set, file pages that the kernel can drop are available.
    """
    available = _meminfo("MemAvailable", root)
    for folder in _folders("memory", root):
        available = min(available, _available_in(folder, available))
    return max(0, available)


def resident_memory(root: Path = Path("/")) -> int:
    pages = int((root / "proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def process_age() -> float:
    """Return the seconds since this process was spawned."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def cpu_name(root: Path = Path("/")) -> str:
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return "cpu"


def _folders(controller: str, root: Path) -> list[Path]:
    # This process's cgroup and all above. In a container, /proc/self/cgroup may have the host's path: then use the
    # mount's root.
    mount = root / "sys/fs/cgroup"
    folders = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = mount
        elif controller in controllers.split(","):
            base = next((b for b in (mount / controllers, mount / controller) if b.is_dir()), mount)
        else:
            continue
        own = base / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder == base or base in folder.parents]
    return folders or [mount]


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    v1_quota, v1_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if v1_quota is None or v1_period is None or v1_quota <= 0:
        return None
    return v1_quota / v1_period


def _waited(root: Path) -> dict[int, float]:
    # The second field: nanoseconds on the run queue.
    waited = {}
    for task in (root / "proc/self/task").iterdir():
        try:
            waited[int(task.name)] = int((task / "schedstat").read_text().split()[1]) * _NANOSECOND
        except (FileNotFoundError, ProcessLookupError):
            if not (root / "proc/self/schedstat").exists():
                raise  # this kernel does not count it
    return waited


def _busy(root: Path) -> float:
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in (root / "proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in allowed:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
            ticks += user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _available_in(folder: Path, otherwise: int) -> int:
    for limit_name, use_name, file_pages in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, use = _number(folder / limit_name), _number(folder / use_name)
        if limit is not None and limit < _UNLIMITED and use is not None:
            return limit - use + _statistic(folder / "memory.stat", file_pages)
    return otherwise


def _statistic(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for key, _, value in (line.partition(" ") for line in lines) if key == name), 0)


def _meminfo(name: str, root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {name}")
