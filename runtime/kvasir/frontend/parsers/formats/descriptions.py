"""The parts of a description of a format. The state machine and the grammars of a tool choice read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Body(Enum):
    """How one call is written. JSON objects are also read as an array, and an array's object alone."""

    JSON_OBJECT = auto()
    """An object with the name and the arguments: {"name": "f", "arguments": {"a": 1}}."""
    NAMED_JSON = auto()
    """The name, a mark, and the arguments as JSON."""
    XML = auto()
    """<function=f><parameter=a>value</parameter></function>, the values as text."""
    PYTHON = auto()
    """A call in Python: f(a=1)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the calls of a section stand in its text. Whitespace may stand between all parts."""

    body: Body
    array: bool = False
    """The calls stand in [ and ], with commas between them."""
    several: bool = False
    """More calls may follow in the same section (an array has several in any case)."""
    separator: str = ""
    """Text that may stand between two calls of a section."""
    call_opening: str = ""
    """Mark before each call."""
    name_end: str = ""
    """NAMED_JSON: the mark between the name and the arguments."""
    id_mark: str = ""
    """NAMED_JSON: a mark before name_end, with the id of the call between them. It may be missing."""
    name_end_is_optional: bool = False
    """NAMED_JSON: the arguments may also follow the name at once."""
    call_closing: str = ""
    """Mark behind each call."""
    arguments_key: str = "arguments"
    """JSON_OBJECT: the key that the model uses. "arguments" and "parameters" are read in any case."""
    first: str = ""
    """The characters with which this layout begins, and the other ones of the format do not. "": any."""
    token: str = ""
    """A grammar uses this layout only if the tokenizer has this added token, special or not. "": always."""

    @property
    def takes_several(self) -> bool:
        return self.array or self.several


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes tool calls."""

    name: str
    """As in vLLM's --tool-call-parser."""
    layouts: tuple[Layout, ...]
    """The parser takes the one whose `first` comes next; a grammar the first one whose token exists."""
    openings: tuple[str, ...] = ()
    """Marks that begin a section of calls. A grammar uses the first one."""
    bare: bool = False
    """The content may begin with a section that has no opening mark."""
    space: str = ""
    """Whitespace that the model writes behind the opening and before the closing mark."""
    between: str = "\n"
    """Whitespace that the model writes between two sections."""
    closing: str = ""
    """Mark that ends a section. A missing one is accepted."""
    other_closings: tuple[str, ...] = ()
    """Marks that models write in its place. A grammar does not."""
    markers: tuple[str, ...] = ()
    """Detection: the chat template has all of these texts ..."""
    not_markers: tuple[str, ...] = ()
    """... and none of these."""
    sample: str = ""
    """An output with one call. Formats of plug-ins are tried with it at start."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning, with which its output begins."""

    name: str
    """As in vLLM's --reasoning-parser."""
    starts: tuple[str, ...]
    """The marks that begin it. The template may have written one at the end of the prompt."""
    ends: tuple[str, ...]
    """The marks that end it. The first one is written when a thinking budget is used up."""
    assumed: bool = False
    """The output begins with reasoning even without a mark, except if the prompt has ended it."""
    markers: tuple[str, ...] = ()
    """Detection: the chat template has all of these texts ..."""
    not_markers: tuple[str, ...] = ()
    """... and none of these."""


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """gpt-oss writes reasoning, content and calls as messages with a channel: both formats in one."""

    name: str
    markers: tuple[str, ...] = ("<|channel|>", "analysis")
    not_markers: tuple[str, ...] = ()


def fits(template: str, markers: Sequence[str], not_markers: Sequence[str]) -> bool:
    """Return whether a chat template has the marker texts of a format."""
    return bool(markers) and all(m in template for m in markers) and not any(m in template for m in not_markers)
