"""Errors between a model's name and its files; each message includes the next step."""

from kvasir.config.options import ConfigError
from kvasir_contract.reasons import Reason


class HubError(ConfigError):
    """A model that cannot be used: its source, or one of its files."""


class ModelNotFound(HubError):
    """The model does not exist, or may not be read from here."""

    reason = Reason.MODEL_NOT_FOUND


class DownloadFailed(HubError):
    """The model could not be fetched now: the network, the hub or the disk. Another try may succeed."""

    reason = Reason.DOWNLOAD_FAILED
