"""The errors for a model whose files cannot be served."""

from kvasir.config.options import ConfigError


class ModelLoadError(ConfigError):
    """A model that cannot be served; the message names the file, the cause and the remedy."""


class UnsupportedSetting(ModelLoadError):
    """A setting that Kvasir's own code for the architecture does not compute; transformers' may."""


class UnknownTensor(ModelLoadError):
    """A tensor that Kvasir's own code does not have; transformers' may read it."""
