"""A worker process with a scripted behaviour: `python scripted_worker.py HANDLE BEHAVIOUR`.

- echo: replies with each frame
- slow: the same, after a pause that grows and shrinks
- hash: replies with the SHA-256 of each frame
- deaf: attaches, enters phase 1, and never reads
- large: replies to each frame with the number of bytes that it has as text
- exit-at N: ends while it handles frame N

It imports only the shared memory. In phase 1 a worker waits for a frame, in phase 2 it handles one.
"""

import hashlib
import sys
import time
from itertools import count

from kvasir.executor.shared_memory.channel import WorkerChannel, WorkerHandle
from kvasir.executor.shared_memory.ring import PeerLostError

WAITING, HANDLING = 1, 2


def handle(channel: WorkerChannel, behaviour: str, number: int, step: int, frame: bytes) -> None:
    match behaviour:
        case "hash":
            channel.replies.write(hashlib.sha256(frame).digest())
        case "large":
            channel.replies.write(b"x" * int(frame))
        case "exit-at" if step == number:
            sys.exit(3)
        case "slow":
            time.sleep(step % 20 * 1e-4)
            channel.replies.write(frame)
        case _:
            channel.replies.write(frame)


def main(text: str, behaviour: str, number: str = "0") -> None:
    channel = WorkerChannel(WorkerHandle.from_text(text))
    channel.progress.enter(0, WAITING)
    if behaviour == "deaf":
        time.sleep(600)
    try:
        for step in count(1):
            frame = channel.requests.read()
            channel.progress.enter(step, HANDLING)
            handle(channel, behaviour, int(number), step, frame)
            channel.progress.enter(step, WAITING)
    except PeerLostError:
        sys.exit(9)


if __name__ == "__main__":
    main(*sys.argv[1:])
