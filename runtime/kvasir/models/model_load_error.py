"""What goes wrong with a model's files."""

from kvasir.config.options import ConfigError


class ModelLoadError(ConfigError):
    """A model that cannot be served: its config.json or its weights; the message names what and why."""
