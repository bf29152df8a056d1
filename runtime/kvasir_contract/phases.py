"""The phases of an engine or frontend, from scheduling to its end."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """How far a process is on its way to serving, in this order."""

    SCHEDULING = "Scheduling"  # no node yet
    PULLING = "Pulling"  # no container yet
    STARTING = "Starting"  # the process imports its libraries
    LOADING = "Loading"  # of weights; the progress counts bytes
    WARMING = "Warming"  # KV memory is allocated, and a first step runs
    READY = "Ready"
    DRAINING = "Draining"  # no new requests
    FAILED = "Failed"


# Seconds without progress until a start-up is stuck. A kernel compilation reports no progress.
STARTUP_LIMIT: Final = 900.0
