"""The phases of an engine or frontend, from scheduling to its end."""

from enum import StrEnum


class Phase(StrEnum):
    """How far a process is on its way to serving, in this order."""

    SCHEDULING = "Scheduling"
    """The pod has no node yet."""
    PULLING = "Pulling"
    """The pod has a node, and no container yet."""
    STARTING = "Starting"
    """The process runs and imports its libraries."""
    LOADING = "Loading"
    """Weights are read; the progress counts bytes."""
    WARMING = "Warming"
    """KV memory is allocated and a first step is run."""
    READY = "Ready"
    DRAINING = "Draining"
    """The process finishes its requests and accepts no new ones."""
    FAILED = "Failed"
