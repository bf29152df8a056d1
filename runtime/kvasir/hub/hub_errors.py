from kvasir.config.options import ConfigError
from kvasir_contract.reasons import Reason


class HubError(ConfigError):
    """A model cannot be used."""


class ModelNotFound(HubError):
    """A model does not exist, or may not be read from here."""

    reason = Reason.MODEL_NOT_FOUND


class DownloadFailed(HubError):
    """The network, the hub or the disk failed. Another try may succeed."""

    reason = Reason.DOWNLOAD_FAILED
