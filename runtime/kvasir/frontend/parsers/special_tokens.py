"""The special tokens in the marks of formats."""

import dataclasses
from collections.abc import Iterator

from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ReasoningFormat, ToolFormat
from kvasir.frontend.parsers.streaming.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START
from kvasir.hub.tokenizer import Tokenizer

_CONSTRAIN = "<|constrain|>"
_NOT_OF_THE_OUTPUT = frozenset({"name", "markers", "not_markers", "sample"})


def special_ids_of(
    tokenizer: Tokenizer, *formats: ToolFormat | ReasoningFormat | HarmonyFormat | None
) -> frozenset[int]:
    """Return the ids of the special tokens that a parser of these formats needs in its text."""
    marks = {mark for each in formats if each is not None for mark in _marks(each)}
    backend = tokenizer.backend
    texts = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    return frozenset(
        token_id for token_id in tokenizer.special_ids if any(texts[token_id] in mark for mark in marks)
    )


def _marks(description: object) -> Iterator[str]:
    """Return the texts that a description has for outputs."""
    if isinstance(description, HarmonyFormat):
        yield from (START, CHANNEL, MESSAGE, END, CALL, RETURN, _CONSTRAIN)
    elif isinstance(description, str):
        yield description
    elif isinstance(description, tuple):
        for part in description:
            yield from _marks(part)
    elif dataclasses.is_dataclass(description):
        for field in dataclasses.fields(description):
            if field.name not in _NOT_OF_THE_OUTPUT:
                yield from _marks(getattr(description, field.name))
