import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvasir.link.protocol import AddRequest
from runtime.frontend.endpoints.pooling.pooling_models import embedding_frontend, scoring_frontend
from runtime.frontend.harness import Frontend
from runtime.link_messages import prompt_of


@pytest.fixture
async def scores(tmp_path: Path) -> AsyncIterator[Frontend]:
    async with scoring_frontend(tmp_path, ["LABEL_0"]) as frontend:
        yield frontend


async def post(frontend: Frontend, path: str, **body: Any) -> dict[str, Any]:
    async with frontend.http() as client:
        return dict((await client.post(path, json=body)).json())


def by_last_token(request: AddRequest) -> list[float]:
    return [prompt_of(request)[-1] / 1000]


async def tokens(frontend: Frontend, text: str) -> list[int]:
    return await frontend.service.llm.input.tokenize(text, add_special_tokens=False)


async def test_pairs_are_scored_in_their_order(scores: Frontend) -> None:
    scores.engine.script.vector = by_last_token
    documents = ["one", "two", "three"]
    expected = [(await tokens(scores, each))[-1] / 1000 for each in documents]
    for path in ("/score", "/v1/score"):
        answer = await post(scores, path, text_1="number", text_2=documents)
        assert [each["score"] for each in answer["data"]] == pytest.approx(expected)
    answer = await post(scores, "/score", queries=["a", "b", "c"], documents=documents)
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected)


async def test_rerank_sorts_and_cuts(scores: Frontend) -> None:
    scores.engine.script.vector = by_last_token
    documents = ["one", {"text": "two"}, "three"]
    values = [(await tokens(scores, each))[-1] / 1000 for each in ("one", "two", "three")]
    order = sorted(range(3), key=lambda index: -values[index])
    for path, shows in (("/rerank", True), ("/v1/rerank", True), ("/v2/rerank", False)):
        answer = await post(scores, path, query="number", documents=documents, top_n=2)
        assert [each["index"] for each in answer["results"]] == order[:2]
        assert all(("document" in each) is shows for each in answer["results"])
    answer = await post(scores, "/v2/rerank", query="number", documents=documents, return_documents=True)
    assert len(answer["results"]) == 3
    assert answer["results"][0]["document"]["text"] == ("one", "two", "three")[order[0]]


async def test_vectors_are_compared_by_their_cosine() -> None:
    async with embedding_frontend() as frontend:
        vectors = {(await tokens(frontend, "one"))[-1]: [1.0, 0.0], (await tokens(frontend, "two"))[-1]: [0.6, 0.8]}
        frontend.engine.script.vector = lambda request: vectors[prompt_of(request)[-1]]
        answer = await post(frontend, "/score", text_1="one", text_2=["one", "two"])
        assert [each["score"] for each in answer["data"]] == pytest.approx([1.0, 0.6])
        assert all(each.pooling is not None and each.pooling.normalize for each in frontend.engine.seen.requests)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/embed", "/score"])
async def test_labels_are_another_kind_than_vectors_and_scores(path: str, tmp_path: Path) -> None:
    bodies = {"/v2/embed": {"texts": ["a"]}, "/score": {"text_1": "a", "text_2": "b"}}
    async with scoring_frontend(tmp_path, ["no", "yes"]) as frontend, frontend.http() as client:
        answer = await client.post(path, json=bodies.get(path, {"input": "a"}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "endpoint_not_supported")


async def test_classify_names_the_likeliest_label(tmp_path: Path) -> None:
    async with scoring_frontend(tmp_path, ["no", "yes"]) as frontend:
        frontend.engine.script.vector = lambda request: [0.25, 0.75]
        answer = await post(frontend, "/classify", input=["a", "b"])
        pair = await post(frontend, "/score", text_1="a", text_2="b")
    assert [each["label"] for each in answer["data"]] == ["yes", "yes"]
    assert answer["data"][0]["probs"] == pytest.approx([0.25, 0.75])
    assert "scores 2 labels" in pair["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_1"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": [5]}, "documents.0"),
        ("/v1/embeddings", {"input": "a"}, "model"),
    ],
)
async def test_a_mistake_is_named(scores: Frontend, path: str, body: dict[str, Any], param: str) -> None:
    answer = await post(scores, path, **body)
    assert str(answer["error"]["param"]).startswith(param.partition(".")[0])


@pytest.mark.parametrize("name", ["use_activation", "activation", "softmax"])
async def test_logits_are_asked_for_by_each_name(name: str, scores: Frontend) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/score": {"text_1": "a", "text_2": "b"},
        "/rerank": {"query": "a", "documents": ["b"]},
        "/classify": {"input": "a"},
        "/pooling": {"input": "a"},
    }
    for path, body in bodies.items():
        for value in (True, False):
            await post(scores, path, **body, **{name: value})
            pooling = scores.engine.seen.requests[-1].pooling
            assert pooling is not None
            assert pooling.activate is value, path


async def test_process_reward_model_scores_each_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"architecture": "LlamaForProcessRewardModel"}
    async with scoring_frontend(tmp_path, [], **settings) as frontend:
        pooling = frontend.service.llm.input.pooling
        assert pooling is not None
        pooling.info = dataclasses.replace(pooling.info, step_tag=7)
        frontend.engine.script.vector = lambda request: [float(i) for i in range(2 * len(prompt_of(request)))]
        answer = await post(frontend, "/pooling", input=[[5, 7, 6, 7], [5]])
        assert [each["data"] for each in answer["data"]] == [[[2.0, 3.0], [6.0, 7.0]], []]
        for task in ("classify", "token_classify"):
            assert len((await post(frontend, "/pooling", input=[[5]], task=task))["data"]) == 1
        for path, body in (("/classify", {"input": "a"}), ("/score", {"text_1": "a", "text_2": "b"})):
            assert "/pooling" in (await post(frontend, path, **body))["error"]["message"]
