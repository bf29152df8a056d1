"""Makes grammars from the constraints of requests, within the bounds of `kvasir.grammar_bounds`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from kvasir.client.input.lark_literals import choice_lark
from kvasir.client.input.schemas import loaded, schema_text
from kvasir.client.input.structural_tags import structural_tag_lark
from kvasir.client.request_errors import InvalidRequest
from kvasir.grammar_bounds import BadGrammar, check_grammar
from kvasir.grammar_bounds.limits import MAX_GRAMMAR_BYTES
from kvasir.request.constraint import Grammar, GrammarKind

ANY_OBJECT: Final[Mapping[str, Any]] = MappingProxyType({"type": "object"})  # the schema of `json_object`
MAX_CHOICES: Final = 5_000
# Cost of a source, in characters and 16 per value, up to which the event loop may make the grammar: 20 ms for one
# pattern.
INLINE_COST: Final = 2 * 1024
_VALUE_COST: Final = 16


def is_small(value: Any, most_cost: int) -> bool:
    cost, waiting = 0, [value]
    while waiting and cost <= most_cost:
        part = waiting.pop()
        cost += _VALUE_COST
        if isinstance(part, str):
            cost += len(part)
        elif isinstance(part, list):
            waiting += part[:most_cost]
        elif isinstance(part, Mapping):
            cost += sum(map(len, islice(part, most_cost)))
            waiting += islice(part.values(), most_cost)
    return cost <= most_cost


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A constraint of a request, not checked yet."""

    form: str  # json, regex, choice, grammar or structural_tag
    value: Any
    param: str  # field for errors
    # For JSON:
    any_whitespace: bool = True
    whitespace_pattern: str = ""
    additional_properties: bool = True  # the default of schemas with `properties`

    @property
    def is_small(self) -> bool:
        """Return whether `grammar` may run on the event loop."""
        return is_small(self.value, INLINE_COST)

    def grammar(self) -> Grammar:
        """Takes milliseconds for a large schema. Raises InvalidRequest with `param`."""
        try:
            grammar = _MAKERS[self.form](self)
            check_grammar(grammar)
        except (BadGrammar, ValueError) as error:
            message = str(error)
            if not message.startswith(self.param):
                message = f"{self.param}: {message}"
            raise InvalidRequest(message, self.param) from None
        return grammar

    def _of_json(self) -> Grammar:
        return Grammar(
            GrammarKind.JSON_SCHEMA,
            schema_text(self.value, additional_properties=self.additional_properties),
            self.any_whitespace,
            self.whitespace_pattern,
        )

    def _of_regex(self) -> Grammar:
        return Grammar(GrammarKind.REGEX, _unicode(self.value))

    def _of_choice(self) -> Grammar:
        if not self.value:
            raise ValueError("the list is empty: give at least one string")
        if len(self.value) > MAX_CHOICES:
            raise ValueError(f"{len(self.value)} choices are too many: give at most {MAX_CHOICES}")
        text = choice_lark([_unicode(choice) for choice in self.value])
        if (size := len(text.encode())) > MAX_GRAMMAR_BYTES:
            raise ValueError(
                f"the choices have {size} bytes, with quotes and separators: give at most {MAX_GRAMMAR_BYTES}"
            )
        return Grammar(GrammarKind.LARK, text)

    def _of_grammar(self) -> Grammar:
        text = _unicode(self.value)
        return Grammar(GrammarKind.EBNF if is_ebnf(text) else GrammarKind.LARK, text)

    def _of_structural_tag(self) -> Grammar:
        def schema(value: Any) -> str:
            grammar = replace(self, value=value)._of_json()
            check_grammar(grammar)
            return grammar.text

        text = structural_tag_lark(loaded(self.value), schema)
        return Grammar(GrammarKind.LARK, text, self.any_whitespace, self.whitespace_pattern)


_MAKERS: Final[Mapping[str, Callable[[GrammarSource], Grammar]]] = MappingProxyType(
    {
        "json": GrammarSource._of_json,
        "regex": GrammarSource._of_regex,
        "choice": GrammarSource._of_choice,
        "grammar": GrammarSource._of_grammar,
        "structural_tag": GrammarSource._of_structural_tag,
    }
)


def is_ebnf(grammar: str) -> bool:
    """Return whether a grammar is EBNF (GBNF), not Lark: a line has ::=, as in vLLM."""
    lines = (line.split("#", 1)[0].split("//", 1)[0] for line in grammar.splitlines())
    return any("::=" in line for line in lines)


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "the text holds half of a surrogate pair (\\ud800 to \\udfff): send complete characters"
        ) from None
    return text
