"""The choice of tools that an output has to call."""

from enum import Enum


class ToolChoice(Enum):
    """`tool_choice` of a request. A named function is REQUIRED with that tool alone."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class UnsupportedChoice(ValueError):
    """The model's formats cannot enforce the choice of tools or reasoning."""
