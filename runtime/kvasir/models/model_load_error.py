"""The error for a model whose files cannot be served."""

from kvasir.config.options import ConfigError


class ModelLoadError(ConfigError):
    """A model that cannot be served: its config.json or its weights; the message names what and why."""


class UnsupportedSetting(ModelLoadError):
    """A setting that the architecture has and Kvasir's own code for it does not compute; transformers' may."""


class UnknownTensor(ModelLoadError):
    """A tensor that Kvasir's own code does not have; transformers' may read it, for example under an older name."""
