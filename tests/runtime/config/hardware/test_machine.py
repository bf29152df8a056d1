import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvasir.config.hardware.machine import (
    CpuUse,
    available_memory,
    cgroup_cores,
    cpu_flags,
    cpu_name,
    cpu_use,
    memory_limit,
    openmp_threads,
    openmp_variables,
    resident_memory,
)

GiB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 cores and 64 GiB."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    write(tmp_path / "proc/meminfo", f"MemFree: 1 kB\nMemTotal: {64 * 2**20} kB\nMemAvailable: {40 * 2**20} kB\n")
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


def test_available_memory_without_a_limit(root: Path) -> None:
    write(root / "sys/fs/cgroup/memory.max", "max\n")
    write(root / "sys/fs/cgroup/memory.current", f"{50 * GiB}\n")
    assert available_memory(root) == 40 * GiB


def test_available_memory_counts_file_pages_of_v2(root: Path) -> None:
    write(root / "sys/fs/cgroup/memory.max", f"{4 * GiB}\n")
    write(root / "sys/fs/cgroup/memory.current", f"{3 * GiB}\n")
    assert available_memory(root) == 1 * GiB
    write(root / "sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {2 * GiB}\n")
    assert available_memory(root) == 3 * GiB


def test_available_memory_of_v1_in_the_tightest_group(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:memory:/pods/one\n")
    group = root / "sys/fs/cgroup/memory/pods/one"
    write(group / "memory.limit_in_bytes", f"{8 * GiB}\n")
    write(group / "memory.usage_in_bytes", f"{9 * GiB}\n")
    write(group / "memory.stat", f"total_inactive_file {2 * GiB}\n")
    write(group.parent / "memory.limit_in_bytes", f"{16 * GiB}\n")
    write(group.parent / "memory.usage_in_bytes", f"{12 * GiB}\n")
    assert available_memory(root) == 1 * GiB


def test_available_memory_is_never_negative(root: Path) -> None:
    write(root / "sys/fs/cgroup/memory.max", f"{1 * GiB}\n")
    write(root / "sys/fs/cgroup/memory.current", f"{2 * GiB}\n")
    assert available_memory(root) == 0


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
    program = "from kvasir.config.hardware.machine import process_age; print(process_age())"
    spawned = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert 0 < age <= time.monotonic() - spawned + 1 / os.sysconf("SC_CLK_TCK")


def test_cpu_use_reads_each_thread_and_adds_up_allowed_cores(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(time, "process_time", lambda: 1.5)
    write(root / "proc/self/task/7/schedstat", "5000000000 250000000 9\n")
    write(root / "proc/self/task/8/schedstat", "4000000000 500000000 9\n")
    cores = ["cpu  9 9 9 9 9 9 9 9 0 0", "cpu0 100 20 30 999 99 1 4 77 5 0", "cpu1 500 0 0 0 0 0 0 0 0 0"]
    write(root / "proc/stat", "\n".join([*cores, "cpu2 200 0 45 999 99 0 0 77 0 0", "intr 12 0"]))
    assert cpu_use(root) == CpuUse(waited={7: 0.25, 8: 0.5}, others=4.0 - 1.5)


def test_cpu_use_is_none_without_the_kernels_counters(root: Path) -> None:
    write(root / "proc/stat", "cpu0 100 0 0 0 0 0 0 0 0 0\n")
    assert cpu_use(root) is None
    (root / "proc/self/task/7").mkdir(parents=True)
    assert cpu_use(root) is None


def test_cpu_use_passes_over_a_thread_that_has_ended(root: Path) -> None:
    write(root / "proc/stat", "cpu0 100 0 0 0 0 0 0 0 0 0\n")
    write(root / "proc/self/schedstat", "1 1 1\n")
    write(root / "proc/self/task/7/schedstat", "1 2000000000 1\n")
    (root / "proc/self/task/8").mkdir()
    use = cpu_use(root)
    assert use is not None
    assert use.waited == {7: 2.0}


def test_cpu_use_of_this_process_grows() -> None:
    first, second = cpu_use(), cpu_use()
    assert first is not None
    assert second is not None
    assert sum(first.waited.values()) > 0
    assert second.waited_since(first) >= 0


def test_waited_since_does_not_fall_when_a_thread_ends() -> None:
    before = CpuUse({7: 9.0, 8: 1.0}, 0.0)
    assert CpuUse({8: 1.5}, 0.0).waited_since(before) == 0.5
    assert CpuUse({8: 1.5, 9: 0.25}, 0.0).waited_since(before) == 0.75  # a thread that has started
    assert CpuUse({7: 2.0, 8: 1.0}, 0.0).waited_since(before) == 0.0  # another thread with the id of the first


@pytest.mark.parametrize(("value", "threads"), [("3", 3), (" 4,2", 4), ("", None), ("0", None), ("all", None)])
def test_openmp_threads_takes_the_first_number(value: str, threads: int | None) -> None:
    assert openmp_threads({"OMP_NUM_THREADS": value}) == threads


def test_openmp_variables_are_found_by_their_prefix() -> None:
    environ = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000", "PATH": "/bin"}
    assert openmp_variables(environ) == {"GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "passive"}
