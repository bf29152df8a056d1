import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import pytest
import tokenizers
from tokenizers import decoders, models

from kvasir.engine.grammar.compiling import compile_grammar
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.engine.grammar.vocabulary import build_tokenizer, read_vocabulary
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.hub import small_tokenizers as small

from .byte_vocabulary import walk

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0},
        "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "array"},
    {"type": "string"},
    {"type": "number"},
    {"type": "integer"},
    {"type": ["integer", "null", "boolean"]},
    {"minimum": 3, "maxLength": 2, "maxItems": 1, "maxProperties": 1},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMinimum": -3.5, "exclusiveMaximum": 1e6},
    {"type": "number", "exclusiveMinimum": 0.999, "exclusiveMaximum": 1},
    {"type": "number", "multipleOf": 0.25},
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "integer", "multipleOf": 7},
    {"type": "integer", "maximum": 2**63 - 1},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^a[^b]{0,9}b$"},
    {"type": "string", "pattern": r"^\w+@\W\S\D$", "maxLength": 9},
    {"type": "string", "pattern": "^(a|bc)+$", "maxLength": 5},
    {"type": "string", "pattern": "^[a&&b[]{2}$"},
    *(
        {"type": "string", "format": name}
        for name in ("date-time", "date", "email", "ipv4", "ipv6", "uuid", "hostname")
    ),
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
    {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 2}],
        "items": {"type": "null"},
        "maxItems": 5,
    },
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"maxLength": 3}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
    {
        "type": "object",
        "properties": {'é\n"': {"type": "integer"}},
        "required": ['é\n"'],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "null"}},
        "additionalProperties": {},
    },
    {"type": "object", "patternProperties": {"a": {"type": "integer"}}, "properties": {"ab": {"minimum": 3}}},
    {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer"}},
    {"type": "object", "required": ["p"], "minProperties": 2, "additionalProperties": {"type": "integer"}},
    {"enum": ["a", 'b\n"\\', 1, 1.5, -0.001, 1e-7, None, True, {"a": [1]}, []]},
    {"const": {"k": "é😀", "z": [1, 2, {"a": None}]}},
    {"const": "</s> <|user|><|end|>"},  # texts, though special tokens have these names
    {"enum": ["<s> a", "<s> b"]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
    {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "type": "object"},
            {"properties": {"a": {"minimum": 5}}},
        ]
    },
    {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
]


def _saved(path: Path, name: str) -> Path:
    return small.save(path / name, getattr(small, name)(), {"eos_token": "</s>"})


def _llama_2(path: Path) -> Path:
    """As in Llama 2: words begin with a sign for the space, and bytes have tokens of their own."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        '"',
        "{",
        "}",
        "[",
        "]",
    ]
    vocabulary = {word: index for index, word in enumerate([*words, ":", ",", "1", "▁a", "ab", '":', "é"])}
    merges = [("▁", "a"), ("a", "b"), ('"', ":")]
    tokenizer.model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return small.save(path / "llama", tokenizer, {"eos_token": "</s>"})


@pytest.fixture(scope="module", params=["byte_level", "added_tokens", "llama", "demo"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizers")
    if request.param == "demo":
        return fetch("demo://", weights=False)
    return _llama_2(path) if request.param == "llama" else _saved(path, request.param)


def _checked(schema: dict[str, Any], text: str) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))


def _is_prefix(tokenizer: llguidance.LLTokenizer, grammar: Grammar, output: list[int]) -> bool:
    return compile_grammar(tokenizer, grammar).validate_tokens(output) == len(output)


@pytest.mark.parametrize("seed", [1, 2])
def test_completed_outputs_are_valid(model: Path, seed: int) -> None:
    ours = load_tokenizer(model)
    eos = ours.backend.token_to_id(ours.eos_token or "</s>")
    assert eos is not None
    vocab_size = ours.backend.get_vocab_size() + 21  # models have more rows than the tokenizer has tokens
    vocabulary = read_vocabulary(model, vocab_size, [eos])
    tokenizer = build_tokenizer(vocabulary)
    texts = [ours.decode([token], skip_special_tokens=False) for token in range(ours.backend.get_vocab_size())]
    preferred = frozenset(token for token, text in enumerate(texts) if text in ('"', "}", "]", '"}'))
    rng, completed = random.Random(seed), 0
    for schema in SCHEMAS:
        for any_whitespace in (True, False):
            grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), any_whitespace)
            pristine = compile_grammar(tokenizer, grammar)
            for _ in range(3):
                guide = OutputGuide(
                    OutputConstraint(grammar),
                    pristine.deep_copy(),
                    vocab_size=vocab_size,
                    known_tokens=vocabulary.size,
                    eos_token_ids=[eos],
                )
                output = list(walk(guide, rng, eos, vocab_size, preferred, 200))
                if len(output) < 200:
                    completed += 1
                    _checked(schema, ours.decode(output, skip_special_tokens=False))
                else:
                    assert _is_prefix(tokenizer, grammar, output)
    assert completed > len(SCHEMAS) * 3  # of 6 for each schema
