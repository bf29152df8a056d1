"""Which tools an output has to call."""

from enum import Enum


class ToolChoice(Enum):
    """`tool_choice` of a request. A named function is REQUIRED with that tool alone."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class UnsupportedChoice(ValueError):
    """A choice of tools or reasoning that this model's formats cannot enforce. The message is for the client."""
