"""The phases of an engine or frontend."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    SCHEDULING = "Scheduling"  # no node yet
    PULLING = "Pulling"  # no container yet
    STARTING = "Starting"  # imports
    LOADING = "Loading"  # progress counts bytes of weights
    WARMING = "Warming"  # KV memory and a first step
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"


# seconds without progress; a kernel compilation reports none
STARTUP_LIMIT: Final = 900.0
