"""Errors between the name of a model and its files; each message includes the next step."""

from kvasir.config.options import ConfigError
from kvasir_contract.reasons import Reason


class HubError(ConfigError):
    """A source or a file of a model cannot be used."""


class ModelNotFound(HubError):
    """A model does not exist, or may not be read from here."""

    reason = Reason.MODEL_NOT_FOUND


class DownloadFailed(HubError):
    """A download failed because of the network, the hub or the disk. Another try may succeed."""

    reason = Reason.DOWNLOAD_FAILED
