"""The reasons that conditions give: few and stable, because people and scripts wait for them."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    NAME_TAKEN = "NameTaken"
    INVALID_SPEC = "InvalidSpec"
    MODEL_NOT_FOUND = "ModelNotFound"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"
    LINK_REFUSED = "LinkRefused"
    ROLLING_OUT = "RollingOut"
    WARMING = "Warming"
    LOADING = "Loading"
    AS_DESIRED = "AsDesired"


FAILURES: Final = tuple(Reason)[: tuple(Reason).index(Reason.ROLLING_OUT)]
"""Reasons that do not go away by waiting, the one to report first first; the others are ways to what is desired."""


def rank_of(reason: Reason) -> int:
    """The lower, the more it deserves to be reported."""
    return tuple(Reason).index(reason)
