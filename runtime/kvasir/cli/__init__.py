"""The `kvasir` command. main.py finds the sub-command; most other modules are one sub-command each."""

import os
import signal

if os.getpid() == 1:
    # The kernel drops signals for which the first process of a container has no handler. Until main.py sets its
    # own, this one ends a pod that is deleted as it starts: it would serve until it is killed, with its requests.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

# The images start Python with SIGTERM blocked (images/Dockerfile), because a blocked signal waits for its handler.
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
