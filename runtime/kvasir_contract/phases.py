"""The phases of an engine or frontend, from scheduling to its end."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """How far a process is on its way to serving, in this order."""

    SCHEDULING = "Scheduling"
    """The pod is not assigned to a node yet."""
    PULLING = "Pulling"
    """The pod is assigned to a node, but its container is not created yet."""
    STARTING = "Starting"
    """The process is running and imports its libraries."""
    LOADING = "Loading"
    """Weights are being read. The progress counts bytes."""
    WARMING = "Warming"
    """KV memory is allocated, and a first step runs."""
    READY = "Ready"
    DRAINING = "Draining"
    """The process finishes its requests and accepts no new ones."""
    FAILED = "Failed"


STARTUP_LIMIT: Final = 900.0
"""Seconds without progress after which a start-up counts as stuck. A kernel compilation reports no progress."""
