"""Errors between a model's name and its files; each message has the next step."""

from kvasir.config.options import ConfigError
from kvasir_contract.reasons import Reason


class HubError(ConfigError):
    """A model cannot be used."""


class ModelNotFound(HubError):
    """The model does not exist, or access is denied."""

    reason = Reason.MODEL_NOT_FOUND


class DownloadFailed(HubError):
    """The network, the hub or the disk failed. A retry may succeed."""

    reason = Reason.DOWNLOAD_FAILED
