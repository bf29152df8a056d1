"""Wakes a main thread that waits on a queue, so that Python runs signal handlers in it."""

import os
import signal
import threading
from collections.abc import Callable


def wake_after_signals(wake: Callable[[], object]) -> None:
    """Call `wake` after each signal that has a handler. Main thread only; cannot be undone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def work() -> None:
        while os.read(reader, 1):
            wake()

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=work, name="signals", daemon=True).start()
