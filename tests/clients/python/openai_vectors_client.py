"""openai-python: vectors, which it asks for in base64."""

import openai

from clients.python.replaying import API_KEY, BASE_URL, MODEL, raised, run

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
TEXTS = ["A cat", "A kitten", "A car"]


def vectors() -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXTS, user="me")
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0
    floats = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    for one, other in zip(answer.data, floats.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
        assert abs(sum(number * number for number in one.embedding) - 1) < 1e-4


def tokens() -> None:
    answer = client.embeddings.create(model=MODEL, input=[[5, 6], [7]])
    assert (len(answer.data), answer.usage.prompt_tokens) == (2, 3)


def dimensions() -> None:
    answer = client.embeddings.create(model=MODEL, input="A cat", dimensions=8)
    assert len(answer.data[0].embedding) == 8


def mistakes() -> None:
    error = raised(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input=[]))
    assert error.param == "input"
    raised(openai.NotFoundError, lambda: client.completions.create(model=MODEL, prompt="A cat"))


async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as its:
        assert (await its.embeddings.create(model=MODEL, input="A cat")).data[0].embedding


run(vectors, tokens, dimensions, mistakes, asynchronous)
