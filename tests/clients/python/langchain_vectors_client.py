"""LangChain: the embeddings of langchain-openai, and their similarities."""

from operator import mul

from langchain_openai import OpenAIEmbeddings

from clients.python.replaying import API_KEY, BASE_URL, MODEL, run

TEXTS = ["A cat", "A kitten", "A car"]


def embeddings() -> OpenAIEmbeddings:
    # Otherwise it sends the tokens of OpenAI's own tokenizer.
    return OpenAIEmbeddings(base_url=BASE_URL, api_key=API_KEY, model=MODEL, check_embedding_ctx_length=False)


def vectors() -> None:
    found = embeddings().embed_documents(TEXTS)
    assert len(found) == 3
    assert abs(sum(number * number for number in embeddings().embed_query("A cat")) - 1) < 1e-4


def similarities() -> None:
    query = embeddings().embed_query("A car")
    found = [sum(map(mul, query, each)) for each in embeddings().embed_documents(TEXTS)]
    assert found.index(max(found)) == 2


async def asynchronous() -> None:
    assert len(await embeddings().aembed_documents(TEXTS)) == 3


run(vectors, similarities, asynchronous)
