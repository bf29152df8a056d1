"""Turns a grammar into a matcher of llguidance, in the trial process and then in the engine.

A grammar within the bounds may still be a bomb: only trials.py may compile a new one.
"""

import random
import re
import sys
from typing import Any, Final

import llguidance
import msgspec
import orjson
from llguidance.gbnf_to_lark import gbnf_to_lark

from kvasir.grammar_bounds import BadGrammar, adapt_grammar
from kvasir.grammar_bounds.forced_text import may_force
from kvasir.grammar_bounds.json_options import json_options
from kvasir.grammar_bounds.special_names import PRIVATE_NAME, public_text
from kvasir.request.constraint import Grammar, GrammarKind

_NO_FORCING: Final = '%llguidance {"no_forcing": true}\n'
PROBED_TOKENS: Final = 32
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def parser_limits() -> llguidance.LLParserLimits:
    # a mask takes up to about 20 ms, and all masks 100 MB
    return llguidance.LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def compile_grammar(tokenizer: llguidance.LLTokenizer, grammar: Grammar) -> llguidance.LLMatcher:
    """Return a matcher at the start of the grammar, with its first mask. Raises BadGrammar."""
    return compile_adapted(tokenizer, adapt_grammar(grammar))


def compile_adapted(tokenizer: llguidance.LLTokenizer, grammar: Grammar) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(
        tokenizer, _llguidance_text(tokenizer, grammar), log_level=0, limits=parser_limits()
    )
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise refusal_of(matcher.get_error())
    return matcher


def probe(tokenizer: llguidance.LLTokenizer, matcher: llguidance.LLMatcher, seed: int = 0) -> None:
    """Follow the grammar over random tokens and use it up: some are too complex later. Raises BadGrammar."""
    rng = random.Random(seed)
    end = set(tokenizer.eos_tokens)
    for _ in range(PROBED_TOKENS):
        mask = matcher.compute_bitmask()
        token = _random_token(mask, rng)
        if matcher.is_error() or token is None:
            raise BadGrammar(
                f"the grammar needs too much work after some tokens ({shortened(matcher.get_error())}): simplify "
                "its regular expressions and counted repetitions"
            )
        if token in end:
            return
        if not matcher.consume_token(token) and not matcher.is_error():
            return


def _random_token(mask: bytes, rng: random.Random) -> int | None:
    # the first one from a random place on, with wrap-around
    start = rng.randrange(len(mask))
    for place in (*range(start, len(mask)), *range(start)):
        if mask[place]:
            bits = [bit for bit in range(8) if mask[place] >> bit & 1]
            token: int = place * 8 + rng.choice(bits)
            return token
    return None


def _llguidance_text(tokenizer: llguidance.LLTokenizer, grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.LARK:
        grammar = msgspec.structs.replace(grammar, text=_with_token_ids(tokenizer, grammar.text))
    if not may_force(grammar):
        return llguidance.LLMatcher.grammar_from_lark(_NO_FORCING + _lark_text(grammar))
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        options: Any = json_options(grammar)
        return llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=options)
    return llguidance.LLMatcher.grammar_from_lark(_lark_text(grammar))


def _lark_text(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = {**orjson.loads(grammar.text), "x-guidance": json_options(grammar)}
            return f"start: %json {orjson.dumps(schema).decode()}"
        case GrammarKind.REGEX:
            described = llguidance.LLMatcher.grammar_from_regex(grammar.text)
            return str(orjson.loads(described)["grammars"][0]["lark_grammar"])
        case GrammarKind.LARK:
            return grammar.text
        case GrammarKind.EBNF:
            try:
                return str(gbnf_to_lark(_ESCAPE.sub(_plain_escape, grammar.text)))
            except Exception as error:  # plain exceptions of the converter
                raise BadGrammar(f"the EBNF grammar cannot be read: {shortened(str(error))}", "grammar") from None
    raise BadGrammar(f"this engine does not know grammars of the kind {grammar.kind.value!r}: update it")


def _with_token_ids(tokenizer: llguidance.LLTokenizer, lark: str) -> str:
    def written(match: re.Match[str]) -> str:
        name = public_text(match[0])
        ids = tokenizer.tokenize_str(name)
        return f"<[{ids[0]}]>" if len(ids) == 1 and tokenizer.decode_str(ids) == name else match[0]

    return PRIVATE_NAME.sub(written, lark)


def _plain_escape(match: re.Match[str]) -> str:
    # the converter drops leading zeros of \u and \U
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return chr(code) if code <= sys.maxunicode else match[0]


_MAX_CHARACTERS: Final = 300
_STATE: Final = re.compile(r"\s*<(?:state|non-verbose/?)>.*", re.DOTALL)
# a schema's error inside of Lark, followed by lines of the grammar
_IN_LARK: Final = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ([^\n]*).*", re.DOTALL)

_KNOWN: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "oneOf constraints are not supported",
        "oneOf",
        "has branches that may match the same value: use 'anyOf', or give each branch a required property with a "
        "constant of its own",
    ),
    (
        "patternProperty regexes",
        "patternProperties",
        "has patterns that may match the same name: make them disjoint",
    ),
    (
        "min/maxProperties only supported",
        "minProperties",
        "and 'maxProperties' need all names in 'properties' to be required: remove them, or require the names",
    ),
    ("Failed to generate regex for", "minimum", "or 'maximum' is too large a number: remove it"),
    (
        "Unable to determine if regex is empty",
        "pattern",
        "is too complex together with the length: remove one of them",
    ),
    (
        "circular references with sibling",
        "$ref",
        "is recursive and has keywords next to it: move them into the target",
    ),
    ("schema too large", "allOf", "joins too many branches: merge some"),
)  # beginning of the error, keyword, rest of the refusal


def refusal_of(message: str) -> BadGrammar:
    cause = shortened(_IN_LARK.sub(r"\1", message))
    for beginning, keyword, problem in _KNOWN:
        if cause.startswith(beginning):
            return BadGrammar(f"JSON Schema keyword {keyword!r} {problem} ({cause})", keyword)
    if cause.startswith("Unsatisfiable schema"):
        return BadGrammar(f"no output can match the JSON schema: {cause}")
    if cause.startswith("NoExtension"):
        return BadGrammar("the grammar matches no text at all: correct it")
    return BadGrammar(f"the grammar cannot be compiled: {cause}")


def shortened(message: str) -> str:
    return public_text(" ".join(_STATE.sub("", message).split()))[:_MAX_CHARACTERS]
