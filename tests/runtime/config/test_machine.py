import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvasir.config.machine import cgroup_cores, cpu_flags, cpu_name, memory_limit, resident_memory

GiB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 cores and 64 GiB."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    write(tmp_path / "proc/meminfo", f"MemFree: 1 kB\nMemTotal: {64 * 2**20} kB\n")
    write(
        tmp_path / "proc/cpuinfo",
        "processor : 0\nmodel name : Some CPU\nflags : fma avx512_bf16\n\nprocessor : 1\n",
    )
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_limits_the_whole_machine(root: Path) -> None:
    assert cgroup_cores(root) == 16
    assert memory_limit(root) == 64 * GiB


def test_affinity_limits_cores(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cgroup_cores(root) == 2


def test_cgroup_v2_in_a_container(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/cpu.max", "350000 100000\n")
    write(root / "sys/fs/cgroup/memory.max", f"{4 * GiB}\n")
    assert cgroup_cores(root) == 3
    assert memory_limit(root) == 4 * GiB


def test_cgroup_v2_without_limits(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/cpu.max", "max 100000\n")
    write(root / "sys/fs/cgroup/memory.max", "max\n")
    assert cgroup_cores(root) == 16
    assert memory_limit(root) == 64 * GiB


def test_the_tightest_of_nested_groups_decides(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/pod/container\n")
    write(root / "sys/fs/cgroup/pod/cpu.max", "200000 100000\n")
    write(root / "sys/fs/cgroup/pod/container/cpu.max", "800000 100000\n")
    write(root / "sys/fs/cgroup/pod/memory.max", f"{8 * GiB}\n")
    write(root / "sys/fs/cgroup/pod/container/memory.max", f"{2 * GiB}\n")
    assert cgroup_cores(root) == 2
    assert memory_limit(root) == 2 * GiB


def test_cgroup_v1(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n")
    write(root / "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "400000\n")
    write(root / "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n")
    write(root / "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", f"{GiB}\n")
    assert cgroup_cores(root) == 4
    assert memory_limit(root) == GiB


def test_cgroup_v1_where_the_hosts_path_is_not_mounted(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:memory:/kubepods/pod1/abc\n4:cpu:/kubepods/pod1/abc\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GiB}\n")
    assert cgroup_cores(root) == 1
    assert memory_limit(root) == GiB


def test_cgroup_v1_without_limits(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:memory:/\n4:cpu:/\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_cores(root) == 16
    assert memory_limit(root) == 64 * GiB


def test_what_the_cpu_is(root: Path) -> None:
    assert cpu_flags(root) == {"fma", "avx512_bf16"}
    assert cpu_name(root) == "Some CPU"


def test_this_machine() -> None:
    assert 1 <= cgroup_cores() <= (os.cpu_count() or 1)
    assert 0 < resident_memory() < memory_limit()


def test_a_process_is_as_old_as_its_parent_sees_it() -> None:
    program = "from kvasir.config.machine import process_age; print(process_age())"
    spawned = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert 0 < age <= time.monotonic() - spawned + 1 / os.sysconf("SC_CLK_TCK")
