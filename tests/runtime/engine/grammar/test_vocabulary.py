import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llguidance
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from kvasir.engine.grammar.compiling import compile_grammar
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.engine.grammar.vocabulary import build_tokenizer, read_vocabulary
from kvasir.frontend.parsers.grammar.lark_text import LarkText
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.grammar_bounds.refusals import schema_grammar
from runtime.hub import small_tokenizers as small

from .byte_vocabulary import allowed

EOS = 1
NAMES = ("<tool_call>", "<｜tool▁sep｜>", "[ARGS]", "<a b>", "<é>", "plain", "   ")
FLAGS: tuple[dict[str, bool], ...] = (
    {},
    {"normalized": True},
    {"lstrip": True, "rstrip": True},
    {"single_word": True},
)


def _unigram() -> tokenizers.Tokenizer:
    made = small.unigram()
    trained = json.loads(made.to_str())["model"]["vocab"]
    bytes_ = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    made.model = models.Unigram([*map(tuple, trained), *bytes_], unk_id=2, byte_fallback=True)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def _normalizing() -> tokenizers.Tokenizer:
    made = small.byte_level()
    made.normalizer = normalizers.NFC()
    return made


class Engine:
    def __init__(
        self,
        path: Path,
        make: Callable[[], tokenizers.Tokenizer],
        *tokens: AddedToken,
        eos: tuple[int, ...] = (EOS,),
    ) -> None:
        self.backend = make()
        self.backend.add_tokens(list(tokens))
        self._size, self._eos = self.backend.get_vocab_size(), eos
        self.tokenizer = build_tokenizer(read_vocabulary(small.save(path, self.backend, {}), self._size, eos))

    def id(self, name: str) -> int:
        found = self.backend.token_to_id(name)
        assert found is not None
        return found

    def guide(self, grammar: Grammar) -> OutputGuide:
        matcher = compile_grammar(self.tokenizer, grammar)
        return OutputGuide(
            OutputConstraint(grammar),
            matcher,
            vocab_size=self._size,
            known_tokens=self._size,
            eos_token_ids=self._eos,
        )

    def first_tokens(self, grammar: Grammar) -> list[int]:
        return allowed(self.guide(grammar), self._size)

    def write(self, grammar: Grammar, text: bytes) -> list[int]:
        """Return tokens that write this text as the masks allow it, with long ones first, and end it."""
        guide, written = self.guide(grammar), list[int]()
        while text:
            fitting = [
                (len(found), token)
                for token in allowed(guide, self._size)
                if not self.tokenizer.is_special_token(token)
                and (found := self.tokenizer.decode_bytes([token]))
                and text.startswith(found)
            ]
            assert fitting, (written, text)
            size, token = max(fitting)
            guide.accept([token])
            written.append(token)
            text = text[size:]
        assert EOS in allowed(guide, self._size)
        return written


def _grammars(text: str) -> list[tuple[Grammar, str]]:
    other = "other"
    quoted = json.dumps(text, ensure_ascii=False)
    lark = LarkText({})
    schemas: list[tuple[dict[str, Any], str]] = [
        ({"enum": [text, other]}, quoted),
        ({"const": text}, quoted),
        ({"type": "string"}, quoted),
        (
            {"type": "object", "properties": {text: {"type": "null"}}, "required": [text]},
            f"{{{quoted}:null}}",
        ),
    ]
    return [
        *((schema_grammar(schema), output) for schema, output in schemas),
        (Grammar(GrammarKind.LARK, lark.text(lark.literal(text))), text),
        (Grammar(GrammarKind.LARK, f"start: CHOICE\nCHOICE: {lark.literal(text)} | {lark.literal(other)}\n"), text),
        (Grammar(GrammarKind.LARK, f"start: r {lark.literal(text)}\nr[lazy]: /(?s:.*)!/"), f"so!{text}"),
        (Grammar(GrammarKind.REGEX, "(?s:.*)"), text),
        (Grammar(GrammarKind.EBNF, f'root ::= {lark.literal(text)} | "x"'), text),
    ]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("make", [small.byte_level, _unigram, _normalizing])
def test_a_grammar_writes_the_names_of_added_tokens(
    tmp_path: Path, make: Callable[[], tokenizers.Tokenizer], special: bool, flags: dict[str, bool]
) -> None:
    engine = Engine(tmp_path, make, *(AddedToken(name, special=special, **flags) for name in NAMES))
    for name in NAMES:
        for grammar, output in _grammars(name) + _grammars(f"a {name} the"):
            written = engine.write(grammar, output.encode())
            assert engine.id(name) not in written or not special
            assert engine.tokenizer.decode_bytes(written).decode() == output


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("make", [small.byte_level, _unigram, _normalizing])
def test_an_added_token_writes_its_text_unless_special(
    tmp_path: Path, make: Callable[[], tokenizers.Tokenizer], flags: dict[str, bool]
) -> None:
    engine = Engine(tmp_path, make, AddedToken("<text>", **flags), AddedToken("<mark>", special=True, **flags))
    text, mark = engine.id("<text>"), engine.id("<mark>")
    for grammar, output in _grammars("<text>"):
        assert text in engine.write(grammar, output.encode())
    for name, token in (("<text>", text), ("<mark>", mark)):
        free = engine.first_tokens(Grammar(GrammarKind.REGEX, f"{name}|a"))
        assert (token in free) == (token == text)


@pytest.mark.parametrize("special", [True, False])
def test_a_grammar_in_lark_names_any_added_token(tmp_path: Path, special: bool) -> None:
    engine = Engine(tmp_path, small.byte_level, AddedToken("<text>", special=special))
    for written in ("<text>", f"<[{engine.id('<text>')}]>"):
        guide = engine.guide(Grammar(GrammarKind.LARK, f'start: {written} "a"'))
        guide.accept([engine.id("<text>")])


@pytest.mark.parametrize("special", [True, False])
def test_a_token_that_ends_the_sequence_is_never_text(tmp_path: Path, special: bool) -> None:
    backend = small.byte_level()
    added = backend.get_vocab_size()
    engine = Engine(tmp_path, small.byte_level, AddedToken("<|end|>", special=special), eos=(EOS, added))
    assert engine.id("<|end|>") == added
    for grammar, output in _grammars("<|end|>"):
        assert added not in engine.write(grammar, output.encode())


def test_a_text_that_is_not_normal_is_written_as_it_is(tmp_path: Path) -> None:
    engine = Engine(tmp_path, _normalizing)
    for text in ("cafe\u0301", "\ufb01", "\u212b"):
        for grammar, output in _grammars(text):
            engine.write(grammar, output.encode())


def test_tokens_of_the_model_alone_have_no_text(tmp_path: Path) -> None:
    backend = small.byte_level()
    size = backend.get_vocab_size()
    tokenizer = build_tokenizer(read_vocabulary(small.save(tmp_path, backend, {}), size + 40, [EOS]))
    assert tokenizer.vocab_size == size + 40
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex("(?s:.*)"), log_level=0)
    mask = matcher.compute_bitmask()
    assert not any(mask[token // 8] >> token % 8 & 1 for token in range(size, size + 40))
