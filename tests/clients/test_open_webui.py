"""Open WebUI, whose package is too large to install here: its requests, written down by hand.

They follow open_webui/routers/openai.py and tasks.py of version 0.12.4: a chat of two turns with an answer that
thought, the continued answer, and the requests in the background that find a title and tags.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource

from clients.programs import API_KEY
from service.running import Service

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is a pod?"},
    {"role": "assistant", "content": "A group of containers."},
    {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
]


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    with httpx.Client(base_url=f"{service.url}/v1", headers=headers, timeout=60) as client:
        yield client


def test_the_list_of_models_has_names(client: httpx.Client) -> None:
    models = client.get("/models").json()
    assert [model["id"] for model in models["data"]] == ["demo"]


def test_a_chat_streams(client: httpx.Client) -> None:
    body = {
        "stream": True,
        "model": "demo",
        "messages": HISTORY,
        "temperature": 0.7,
        "max_tokens": 40,
        "stop": ["###"],
        "seed": 1,
        "frequency_penalty": 0.1,
        "reasoning_effort": "low",
        "stream_options": {"include_usage": True},
    }
    with client.stream("POST", "/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        events = [event.data for event in EventSource(response).iter_sse()]
    assert events[-1] == "[DONE]"


def test_an_answer_is_continued(client: httpx.Client) -> None:
    """Its button for this sends the answer so far as the last message."""
    body = {
        "stream": False,
        "model": "demo",
        "messages": [*HISTORY, {"role": "assistant", "content": "Because"}],
        "max_tokens": 10,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert client.post("/chat/completions", json=body).status_code == 200


def test_the_background_asks_for_a_title(client: httpx.Client) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "### Task:\nFind a title of 3 to 5 words."}],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    answer = client.post("/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"]
