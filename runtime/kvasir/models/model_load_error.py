"""The errors for a model whose files cannot be served."""

from kvasir.config.options import ConfigError


class ModelLoadError(ConfigError):
    """A model that cannot be served; the message names the file, the cause and the remedy."""


class UnsupportedSetting(ModelLoadError):
    """A setting that only transformers' code may compute."""


class UnknownTensor(ModelLoadError):
    """A tensor that only transformers' code may read."""
