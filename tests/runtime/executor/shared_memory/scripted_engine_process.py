"""An engine process to kill: `python scripted_engine_process.py BEHAVIOUR ACTIVITY`.

It starts two workers of this behaviour, prints their process ids, and then does one of these for ever:

- step: sends frames and reads the replies
- idle: does nothing
- flood: sends small frames without reading the replies
- large: sends frames of 8 MiB without reading the replies
"""

import sys
import time

from runtime.executor.shared_memory.workers import Workers


def main(behaviour: str, activity: str) -> None:
    workers = Workers([behaviour, behaviour])
    for rank in range(2):
        workers.await_phase(rank, 1)
    print(*(process.pid for process in workers.processes), flush=True)
    while True:
        match activity:
            case "step":
                workers.step(b"frame")
            case "idle":
                time.sleep(600)
            case "flood":
                workers.write(b"100")
            case "large":
                workers.write(bytes(8 * 2**20))


if __name__ == "__main__":
    main(*sys.argv[1:])
