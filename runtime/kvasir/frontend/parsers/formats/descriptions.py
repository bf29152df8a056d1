"""The parts that describe a format."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Body(Enum):
    # {"name": "f", "arguments": {"a": 1}}. Arrays are always read, too.
    JSON_OBJECT = auto()
    NAMED_JSON = auto()  # name, mark, arguments as JSON
    XML = auto()  # <function=f><parameter=a>value</parameter></function>
    PYTHON = auto()  # f(a=1)


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of calls in a section. Whitespace may stand between all parts."""

    body: Body
    array: bool = False  # calls in [ and ], with commas
    several: bool = False  # a grammar writes several calls in a section, as always in an array
    separator: str = ""  # between two calls
    call_opening: str = ""
    name_end: str = ""  # NAMED_JSON: between name and arguments
    id_mark: str = ""  # NAMED_JSON: before an optional call id, which ends at name_end
    name_end_is_optional: bool = False
    call_closing: str = ""
    # JSON_OBJECT: for grammars; "arguments" and "parameters" are both read
    arguments_key: str = "arguments"
    first: str = ""  # characters that begin only this layout; "": any
    token: str = ""  # added token that a grammar needs for this layout; "": none


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str  # as in vLLM's --tool-call-parser
    # The parser uses the one whose `first` comes next, a grammar the first whose token exists.
    layouts: tuple[Layout, ...]
    openings: tuple[str, ...] = ()  # of a section of calls
    bare: bool = False  # content may begin with a section without an opening
    space: str = ""  # that a grammar writes within marks
    between: str = "\n"  # that a grammar writes between sections
    closing: str = ""  # of a section; may be missing
    # read in place of `closing`, but not written by a grammar
    other_closings: tuple[str, ...] = ()
    # The chat template of this format has all of these texts and none of `not_markers`.
    markers: tuple[str, ...] = ()
    not_markers: tuple[str, ...] = ()
    sample: str = ""  # an output with one call, to test a plug-in at load


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    name: str  # as in vLLM's --reasoning-parser
    starts: tuple[str, ...]  # the prompt may end with one
    ends: tuple[str, ...]  # the engine writes the first one when a thinking budget is used up
    assumed: bool = False  # reasoning begins without a mark, unless the prompt has ended it
    markers: tuple[str, ...] = ()  # as in ToolFormat
    not_markers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """Reasoning, content and calls as gpt-oss's messages."""

    name: str
    markers: tuple[str, ...] = ("<|channel|>", "analysis")
    not_markers: tuple[str, ...] = ()


def fits(template: str, markers: Sequence[str], not_markers: Sequence[str]) -> bool:
    """Return whether a chat template has the marker texts of a format."""
    return bool(markers) and all(m in template for m in markers) and not any(m in template for m in not_markers)
