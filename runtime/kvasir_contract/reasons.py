"""The reasons of conditions and failures: few and stable, because people and scripts wait for them."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The reasons in the order in which they are reported if several apply, most urgent first."""

    NAME_TAKEN = "NameTaken"
    """An object with a child's name already exists and is not owned by the service."""
    INVALID_SPEC = "InvalidSpec"
    """A field of the spec or an option of a process is invalid."""
    REFUSED = "Refused"
    """The API server rejected a child because of a quota, a webhook or missing permissions."""
    MODEL_NOT_FOUND = "ModelNotFound"
    DOWNLOAD_FAILED = "DownloadFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_FAILED = "VolumeFailed"
    """A volume of a pod cannot be mounted."""
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"
    """A process exited with an unexpected error."""
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"
    LINK_REFUSED = "LinkRefused"
    PAUSED = "Paused"
    """`spec.paused` is true."""
    WAKING_UP = "WakingUp"
    """Engines start because a request came to a service that had none."""
    ROLLING_OUT = "RollingOut"
    QUEUED = "Queued"
    """A pod waits until its scheduling gates are removed."""
    WAITING_FOR_NODE = "WaitingForNode"
    """An autoscaler adds a node for a pod."""
    WARMING = "Warming"
    LOADING = "Loading"
    UPGRADE_PENDING = "UpgradePending"
    """The operator's release would change the pods, and its roll-out has not been requested."""
    FRONTENDS_UNREACHABLE = "FrontendsUnreachable"
    """The operator cannot ask frontends for their demand, so the service keeps its engines."""
    SCALED_TO_ZERO = "ScaledToZero"
    """The service has no engines because it had no requests."""
    AS_DESIRED = "AsDesired"

    @property
    def urgency(self) -> int:
        """Position in the order of reporting; 0 is the most urgent."""
        return tuple(Reason).index(self)

    @property
    def is_failure(self) -> bool:
        """Whether the problem persists until someone acts."""
        return self.urgency < Reason.PAUSED.urgency


FAILURES: Final = tuple(reason for reason in Reason if reason.is_failure)
