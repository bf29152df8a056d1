"""Frontend and engine compute the same digest, and only the seed may differ."""

import msgspec
import pytest

from kvasir.request.adapter import Adapter
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from kvasir.request.hashing import DIGEST_BYTES, request_digest
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind
from kvasir.request.tokens import packed

PROMPT = packed([1, 2, 3])


def digest_of(params: SamplingParams) -> bytes:
    return request_digest(PROMPT, RequestCore(params))


def test_digest_is_the_same_after_the_way_over_the_link() -> None:
    params = SamplingParams(max_tokens=4, seed=7, temperature=0, top_p=1)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    digest = digest_of(params)
    assert len(digest) == DIGEST_BYTES
    assert request_digest(memoryview(PROMPT), RequestCore(received)) == digest
    assert digest_of(msgspec.structs.replace(params, seed=8)) == digest


@pytest.mark.parametrize("changes", [{"max_tokens": 5}, {"temperature": 0.5}, {"stop_token_ids": (1,)}])
def test_digest_depends_on_the_parameters(changes: dict[str, object]) -> None:
    params = SamplingParams(max_tokens=4, seed=7)
    assert digest_of(params) != digest_of(msgspec.structs.replace(params, **changes))


def test_digest_depends_on_the_prompt() -> None:
    params = SamplingParams(max_tokens=4, seed=7)
    assert digest_of(params) != request_digest(packed([1, 2]), RequestCore(params))


def test_digest_depends_on_the_constraint() -> None:
    params = SamplingParams(max_tokens=4, seed=7)
    schemas = ['{"type": "object"}', '{"type": "array"}']
    constraints = [OutputConstraint(Grammar(GrammarKind.JSON_SCHEMA, schema)) for schema in schemas]
    digests = {
        request_digest(PROMPT, RequestCore(params, constraint=constraint))
        for constraint in [None, *constraints, constraints[0]]
    }
    assert len(digests) == 3


def test_digest_depends_on_the_adapters_content() -> None:
    core = RequestCore(SamplingParams(max_tokens=4, seed=7))
    adapters = [None, Adapter("a", "/a", "1"), Adapter("a", "/a", "2"), Adapter("b", "/b", "2")]
    digests = {request_digest(PROMPT, msgspec.structs.replace(core, adapter=adapter)) for adapter in adapters}
    assert len(digests) == 3


def test_digest_depends_on_the_kind() -> None:
    core = RequestCore(SamplingParams(max_tokens=4, seed=7))
    pooled = msgspec.structs.replace(core, kind=RequestKind.POOL)
    assert request_digest(PROMPT, core) != request_digest(PROMPT, pooled)
