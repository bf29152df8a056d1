"""Wakes the main thread after signals, for processes whose main thread waits on a queue.

Python runs handlers in the main thread. A signal that comes just before the system call in which it sleeps, or to
another thread, does not end that call, so the handler would run with the queue's next event, which may never come.
"""

import os
import signal
import threading
from collections.abc import Callable


def wake_after_signals(wake: Callable[[], object]) -> None:
    """Call `wake` after each signal that has a handler, in a thread that sleeps otherwise.

    It must let the main thread run. Must be called in the main thread, and cannot be undone.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def work() -> None:
        while os.read(reader, 1):
            wake()

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=work, name="signals", daemon=True).start()
