"""What goes wrong between a model's name and its files; each message says what to do about it."""

from kvasir.config.options import ConfigError


class HubError(ConfigError):
    """A model that cannot be used: its source, or one of its files."""


class ModelNotFound(HubError):
    """There is no such model, or it may not be read from here.

    The operator tells this failure from others by the words in front (kvasir_operator/failure.py).
    """

    def __str__(self) -> str:
        return f"model not found: {super().__str__()}"
