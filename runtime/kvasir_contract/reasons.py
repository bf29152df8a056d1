"""The reasons of conditions and failures; stable, because scripts use them."""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The reasons, most urgent first."""

    NAME_TAKEN = "NameTaken"  # a foreign object has a child's name
    INVALID_SPEC = "InvalidSpec"
    REFUSED = "Refused"  # by a quota, a webhook or RBAC
    MODEL_NOT_FOUND = "ModelNotFound"
    DOWNLOAD_FAILED = "DownloadFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_FAILED = "VolumeFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOPING = "CrashLooping"
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    NODE_LOST = "NodeLost"
    LINK_REFUSED = "LinkRefused"
    ROUTE_REFUSED = "RouteRefused"  # from outside the cluster
    PAUSED = "Paused"
    WAKING_UP = "WakingUp"  # by a request
    ROLLING_OUT = "RollingOut"
    QUEUED = "Queued"  # by scheduling gates
    WAITING_FOR_NODE = "WaitingForNode"
    WARMING = "Warming"
    LOADING = "Loading"
    AWAITING_ADDRESS = "AwaitingAddress"  # of the controller of an Ingress or a Gateway
    UPGRADE_PENDING = "UpgradePending"
    LOAD_UNKNOWN = "LoadUnknown"  # so the number of engines stays
    SCALE_IGNORED = "ScaleIgnored"  # because the load decides
    AT_MAX_RANKS = "AtMaxRanks"
    FRONTENDS_UNREACHABLE = "FrontendsUnreachable"  # engines stay
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
