"""A small Ray on this machine, for tests: prints its address, and ends with its standard input.

python ray_head.py FOLDER CPUS NODES
"""

import os
import subprocess
import sys

import ray

MEMORY = 80 * 2**20


def start_node(address: str, cpus: str) -> "subprocess.Popen[bytes]":
    options = ("--num-cpus", cpus, "--object-store-memory", str(MEMORY), "--block")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", address, *options]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    folder, cpus, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ray.init(
        num_cpus=int(cpus),
        object_store_memory=MEMORY,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    address = ray.get_runtime_context().gcs_address
    others = [start_node(address, cpus) for _ in range(1, nodes)]
    print(address, flush=True)
    os.read(0, 1)
    for other in others:
        other.terminate()
        other.wait()
    ray.shutdown()
