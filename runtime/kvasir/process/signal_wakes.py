"""Wakes the main thread after signals, for processes whose main thread waits on a queue.

Python runs signal handlers in the main thread, between two instructions. A signal that comes between the last one
and the system call in which the thread sleeps does not end that call, and neither does a signal that the kernel
delivers to another thread. The handler would then run with the next event of the queue, which may never come.
"""

import os
import signal
import threading
from collections.abc import Callable


def wake_after_signals(wake: Callable[[], object]) -> None:
    """Call `wake` after each signal that has a handler, in a thread that sleeps otherwise.

    It must let the main thread run. For a process that ends soon after its signals: this cannot be undone. Must be
    called in the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def work() -> None:
        while os.read(reader, 1):
            wake()

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=work, name="signals", daemon=True).start()
