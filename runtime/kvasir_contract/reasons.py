"""The reasons of conditions and failures: few and stable, because people and scripts wait for them."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """In the order in which they are reported when several apply: the first is the most urgent."""

    NAME_TAKEN = "NameTaken"
    """An object of a child's name exists and is not owned by the service."""
    INVALID_SPEC = "InvalidSpec"
    """A field of the spec, or an option of a process, cannot be used."""
    REFUSED = "Refused"
    """The API server refused a child: a quota, a webhook or missing rights."""
    MODEL_NOT_FOUND = "ModelNotFound"
    DOWNLOAD_FAILED = "DownloadFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_FAILED = "VolumeFailed"
    """A volume of a pod cannot be mounted."""
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"
    """A process ended by an unexpected error."""
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"
    LINK_REFUSED = "LinkRefused"
    PAUSED = "Paused"
    """`spec.paused` holds back every change."""
    ROLLING_OUT = "RollingOut"
    WARMING = "Warming"
    LOADING = "Loading"
    UPGRADE_PENDING = "UpgradePending"
    """The operator's release would change the pods, and waits to be asked."""
    AS_DESIRED = "AsDesired"

    @property
    def urgency(self) -> int:
        """Rank in the order of reporting; 0 is the most urgent."""
        return tuple(Reason).index(self)

    @property
    def is_failure(self) -> bool:
        """Whether waiting alone does not help."""
        return self.urgency < Reason.PAUSED.urgency


FAILURES: Final = tuple(reason for reason in Reason if reason.is_failure)
