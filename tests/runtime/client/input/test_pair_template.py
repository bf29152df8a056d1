"""Pairs are written by the template of a reranker, and truncated within the document."""

from pathlib import Path

import pytest

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.pair_template import pair_template
from kvasir.client.input.pooling_input import PoolingInput, TextForm, pooling_input
from kvasir.client.request_errors import InvalidRequest
from kvasir.client.service_limits import ServiceLimits
from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.pooling.label_tokens import LabelTokens
from kvasir.hub.pooling.pooling_info import CLASSIFY, EMBED, PoolingInfo
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from runtime.client import trained

LIMIT = 1000
OWN = (
    'A: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    'B: {{ (messages | selectattr("role", "eq", "document") | first).content }} end'
)
CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"
# Templates for chats whose comments have both words.
STRICT = "{{ raise_exception('roles must alternate') }}{# a query, a document #}"
SILENT = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}{# a query, a document #}"
QWEN3 = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the \
answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: a dog
<Document>: the fox<|im_end|>
<|im_start|>assistant
<think>

</think>

"""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    trained.byte_level().save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(tmp_path)


def pairs_of(tokenizer: Tokenizer, template: str | None, names: tuple[str, ...] = ()) -> PoolingInput:
    tokens = LabelTokens(tuple(range(len(names))), names, len(names) == 2) if names else None
    model = trained.model_info(pooling=PoolingInfo(CLASSIFY, labels=("yes",), label_tokens=tokens))
    templates = ChatTemplates(None if template is None else ChatTemplate(template, {}))
    made = pooling_input(model, tokenizer, templates, ServiceLimits(LIMIT, takes_priority=False), lambda rank: None)
    assert made is not None
    return made


def written(pooling: PoolingInput, tokenizer: Tokenizer, query: str, document: str, keep: int | None = None) -> str:
    (tokens,) = pooling.encode([(query, document)], TextForm(keep=keep), "documents")
    return tokenizer.decode(tokens.token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "names", "expected"),
    [
        (OWN, (), "A: a dog\nB: the fox end"),
        (OWN, ("no", "yes"), "A: a dog\nB: the fox end"),
        (CHAT, (), "a dogthe fox"),
        (STRICT, (), "a dogthe fox"),
        (SILENT, ("no", "yes"), QWEN3),
        (CHAT, ("no", "yes"), QWEN3),
        (None, ("no", "yes"), QWEN3),
        (None, ("Yes",), "a dogthe fox"),
    ],
)
def test_pair_is_written_by_the_template(
    template: str | None, names: tuple[str, ...], expected: str, tokenizer: Tokenizer
) -> None:
    assert written(pairs_of(tokenizer, template, names), tokenizer, "a dog", "the fox") == expected


def test_pair_that_the_client_wrote_is_only_joined(tokenizer: Tokenizer) -> None:
    begin, middle, end = QWEN3.partition("<Document>: ")
    assert written(pairs_of(tokenizer, None, ("no", "yes")), tokenizer, begin, middle + end) == QWEN3


def test_truncation_leaves_the_template_whole(tokenizer: Tokenizer) -> None:
    pooling = pairs_of(tokenizer, OWN)
    (whole,) = pooling.encode([("a dog", "")], TextForm(), "documents")
    keep = len(whole.token_ids) + 3
    found = written(pooling, tokenizer, "a dog", "the fox jumps " * 50, keep)
    assert found.startswith("A: a dog\nB: the fox")
    assert found.endswith(" end")
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        written(pooling, tokenizer, "a dog", "the fox", keep=3)


def test_truncation_finds_a_document_that_is_trimmed(tokenizer: Tokenizer) -> None:
    pooling = pairs_of(tokenizer, OWN.replace(".content }}", ".content | trim }}"))
    (whole,) = pooling.encode([("a dog", "")], TextForm(), "documents")
    found = written(pooling, tokenizer, "a dog", " the fox \n", len(whole.token_ids) + 1)
    assert found.startswith("A: a dog\nB: t")
    assert found.endswith(" end")


def test_truncation_does_not_take_the_template_for_the_document(tokenizer: Tokenizer) -> None:
    pooling = pairs_of(tokenizer, OWN)
    (whole,) = pooling.encode([("a dog", "")], TextForm(), "documents")
    found = written(pooling, tokenizer, "a dog", "end", len(whole.token_ids) + 1)
    assert found.endswith(" end")
    assert found.startswith("A: a dog\nB: e")


def test_model_of_vectors_has_no_template_of_pairs() -> None:
    templates = ChatTemplates(ChatTemplate(OWN, {}))
    assert pair_template(templates, PoolingInfo(EMBED)) is None
    assert pair_template(templates, PoolingInfo(CLASSIFY)) is not None


def test_characters_of_templates_and_prompts_are_counted(tokenizer: Tokenizer) -> None:
    pairs = [("a", "b")] * 10
    plain, templated = pairs_of(tokenizer, None), pairs_of(tokenizer, None, ("no", "yes"))
    assert plain.num_characters(pairs, TextForm()) == 20
    assert plain.num_characters(["ab", [5, 6, 7]], TextForm(before="query: ")) == 19
    assert templated.num_characters(pairs, TextForm()) > 10 * len(QWEN3) - 200
