"""cohere: vectors in all their types, and reranking, by both versions of its client."""

import cohere

from clients.python.replaying import API_KEY, BASE_URL, MODEL, raised, run

URL = BASE_URL.removesuffix("/v1")
client = cohere.ClientV2(API_KEY, base_url=URL)
TEXTS = ["A cat", "A kitten", "A car"]


def vectors() -> None:
    types = ["float", "base64", "binary", "ubinary"]
    answer = client.embed(model=MODEL, texts=TEXTS, input_type="search_document", embedding_types=types)
    found = answer.embeddings
    assert answer.texts == TEXTS
    assert len(found.float_) == len(found.base64) == 3
    size = len(found.float_[0])
    for bits, signed, numbers in zip(found.ubinary, found.binary, found.float_, strict=True):
        assert [byte - 128 for byte in bits] == signed
        written = "".join(f"{byte:08b}" for byte in bits)
        assert written[:size] == "".join("1" if number >= 0 else "0" for number in numbers)
    assert answer.meta.billed_units.input_tokens > 0


def dimensions() -> None:
    answer = client.embed(
        model=MODEL, texts=["A cat"], input_type="search_query", output_dimension=8, embedding_types=["float"]
    )
    assert len(answer.embeddings.float_[0]) == 8


def rerank() -> None:
    answer = client.rerank(model=MODEL, query="A cat", documents=TEXTS, top_n=2)
    assert answer.results[0].index == 0
    assert len(answer.results) == 2
    first = cohere.Client(API_KEY, base_url=URL)
    assert first.rerank(model=MODEL, query="A cat", documents=TEXTS).results[0].index == 0


def mistakes() -> None:
    def asks() -> object:
        return client.embed(model=MODEL, texts=["A cat"], input_type="search_query", embedding_types=["int8"])

    assert "embedding_types" in str(raised(cohere.BadRequestError, asks).body)


run(vectors, dimensions, rerank, mistakes)
