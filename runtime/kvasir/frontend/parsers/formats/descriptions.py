"""The parts that describe a format."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Body(Enum):
    # {"name": "f", "arguments": {"a": 1}}. An array of objects is always read, too.
    JSON_OBJECT = auto()
    NAMED_JSON = auto()  # name, mark, arguments as JSON
    XML = auto()  # <function=f><parameter=a>value</parameter></function>
    PYTHON = auto()  # f(a=1)


@dataclass(frozen=True, slots=True)
class Layout:
    """How calls stand in a section. Whitespace may stand between all parts."""

    body: Body
    array: bool = False  # calls stand in [ and ], with commas between them
    several: bool = False  # A grammar writes more than one call in a section (in an array it always may)
    separator: str = ""  # text between two calls of a section
    call_opening: str = ""
    name_end: str = ""  # NAMED_JSON: mark between name and arguments
    id_mark: str = ""  # NAMED_JSON: mark between the name and an optional call id, which ends at name_end
    name_end_is_optional: bool = False
    call_closing: str = ""
    # JSON_OBJECT: the key that a grammar writes. "arguments" and "parameters" are both read.
    arguments_key: str = "arguments"
    first: str = ""  # characters with which only this layout of the format begins; "": any
    token: str = ""  # A grammar uses this layout only if the tokenizer has this added token; "": always

    @property
    def takes_several(self) -> bool:
        return self.array or self.several


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes tool calls."""

    name: str  # as in vLLM's --tool-call-parser
    # The parser takes the one whose `first` comes next, a grammar the first whose token exists.
    layouts: tuple[Layout, ...]
    openings: tuple[str, ...] = ()  # of a section of calls
    bare: bool = False  # the content may begin with a section without an opening mark
    space: str = ""  # that a grammar writes inside of the marks
    between: str = "\n"  # that a grammar writes between two sections
    closing: str = ""  # of a section; may be missing
    # Read in place of `closing`, but not written by a grammar.
    other_closings: tuple[str, ...] = ()
    # The format is detected if the chat template has all of these texts and none of `not_markers`.
    markers: tuple[str, ...] = ()
    not_markers: tuple[str, ...] = ()
    sample: str = ""  # an output with one call, for a trial when a plug-in is loaded


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks the reasoning at the beginning of its output."""

    name: str  # as in vLLM's --reasoning-parser
    starts: tuple[str, ...]  # marks that begin it. The prompt may end with one.
    ends: tuple[str, ...]  # marks that end it. The engine writes the first one when a thinking budget is used up.
    assumed: bool = False  # the output begins with reasoning even without a mark, unless the prompt has ended it
    markers: tuple[str, ...] = ()  # as in ToolFormat
    not_markers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """Reasoning, content and calls as gpt-oss's messages: both formats in one."""

    name: str
    markers: tuple[str, ...] = ("<|channel|>", "analysis")
    not_markers: tuple[str, ...] = ()


def fits(template: str, markers: Sequence[str], not_markers: Sequence[str]) -> bool:
    """Return whether a chat template has the marker texts of a format."""
    return bool(markers) and all(m in template for m in markers) and not any(m in template for m in not_markers)
