"""The reasons of conditions and failures: few and stable, because people and scripts wait for them."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The reasons in the order in which they are reported, most urgent first."""

    NAME_TAKEN = "NameTaken"  # a foreign object has a child's name
    INVALID_SPEC = "InvalidSpec"  # a field, or an option of a process
    REFUSED = "Refused"  # by a quota, a webhook or missing permissions
    MODEL_NOT_FOUND = "ModelNotFound"
    DOWNLOAD_FAILED = "DownloadFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_FAILED = "VolumeFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"  # an unexpected error
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"
    LINK_REFUSED = "LinkRefused"
    PAUSED = "Paused"
    WAKING_UP = "WakingUp"  # a request came to a service without engines
    ROLLING_OUT = "RollingOut"
    QUEUED = "Queued"  # for the removal of scheduling gates
    WAITING_FOR_NODE = "WaitingForNode"  # from an autoscaler
    WARMING = "Warming"
    LOADING = "Loading"
    UPGRADE_PENDING = "UpgradePending"  # not requested yet
    FRONTENDS_UNREACHABLE = "FrontendsUnreachable"  # their demand is unknown, so engines stay
    SCALED_TO_ZERO = "ScaledToZero"
    AS_DESIRED = "AsDesired"

    @property
    def urgency(self) -> int:
        # 0 is the most urgent
        return tuple(Reason).index(self)

    @property
    def is_failure(self) -> bool:
        # it persists until someone acts
        return self.urgency < Reason.PAUSED.urgency


FAILURES: Final = tuple(reason for reason in Reason if reason.is_failure)
