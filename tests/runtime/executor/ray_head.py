"""A small Ray on this machine, for tests: prints its address, and ends with its standard input.

python ray_head.py FOLDER CPUS
"""

import os
import sys

import ray

if __name__ == "__main__":
    ray.init(
        num_cpus=int(sys.argv[2]),
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=sys.argv[1],
    )
    print(ray.get_runtime_context().gcs_address, flush=True)
    os.read(0, 1)
    ray.shutdown()
