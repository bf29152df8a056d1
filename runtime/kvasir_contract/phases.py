"""The phases of an engine or frontend, from scheduling to its end."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    SCHEDULING = "Scheduling"  # no node yet
    PULLING = "Pulling"  # no container yet
    STARTING = "Starting"  # importing libraries
    LOADING = "Loading"  # progress counts bytes of weights
    WARMING = "Warming"  # allocation of KV memory and a first step
    READY = "Ready"
    DRAINING = "Draining"  # no new requests
    FAILED = "Failed"


# Seconds without progress after which a start-up is stuck; a kernel compilation reports none.
STARTUP_LIMIT: Final = 900.0
