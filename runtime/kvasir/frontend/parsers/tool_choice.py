"""Which tools an output has to call."""

from enum import Enum


class ToolChoice(Enum):
    """`tool_choice` of a request. A named function is REQUIRED with that tool alone."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class UnsupportedChoice(ValueError):
    """Raised if the model's formats cannot enforce a choice of tools or reasoning."""
