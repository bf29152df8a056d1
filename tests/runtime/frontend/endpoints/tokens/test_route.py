"""/tokenize and /detokenize: the tokens are those that generation computes."""

from typing import Any

import pytest

from runtime.frontend.harness import MODEL, Frontend, demo_model
from runtime.link_messages import prompt_of

TEXT = "A pod is a group of containers. Größe 🙂"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a pod?"}]


async def post(frontend: Frontend, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with frontend.http() as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("special", [None, True, False])
async def test_the_tokens_of_a_text_are_those_of_a_completion(frontend: Frontend, special: bool | None) -> None:
    body = {"prompt": TEXT, "add_special_tokens": special}
    answer = await post(frontend, "/tokenize", {"model": MODEL, **body})
    await post(frontend, "/v1/completions", {**body, "max_tokens": 1})
    assert answer["tokens"] == prompt_of(frontend.engine.seen.requests[0])
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == frontend.service.llm.max_model_len
    assert answer["token_strs"] is None


async def test_the_tokens_of_a_conversation_are_those_of_a_chat(frontend: Frontend) -> None:
    answer = await post(frontend, "/tokenize", {"messages": CHAT})
    await post(frontend, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1})
    assert answer["tokens"] == prompt_of(frontend.engine.seen.requests[0])
    without = await post(frontend, "/tokenize", {"messages": CHAT, "add_generation_prompt": False})
    assert without["count"] < answer["count"]
    assert without["tokens"] == answer["tokens"][: without["count"]]


async def test_a_continued_message_is_the_last_of_the_tokens(frontend: Frontend) -> None:
    body = {"messages": [*CHAT, {"role": "assistant", "content": "A pod is"}], "continue_final_message": True}
    answer = await post(frontend, "/tokenize", body)
    await post(frontend, "/v1/chat/completions", {**body, "max_tokens": 1})
    assert answer["tokens"] == prompt_of(frontend.engine.seen.requests[0])
    assert (await post(frontend, "/detokenize", {"tokens": answer["tokens"]}))["prompt"].endswith("A pod is")


@pytest.mark.parametrize("text", [TEXT, "", "a", "word " * 1000])
async def test_detokenize_turns_tokens_back_into_their_text(frontend: Frontend, text: str) -> None:
    tokens = (await post(frontend, "/tokenize", {"prompt": text, "add_special_tokens": False}))["tokens"]
    assert (await post(frontend, "/detokenize", {"tokens": tokens}))["prompt"] == text


async def test_detokenize_shows_special_tokens(frontend: Frontend) -> None:
    tokens = (await post(frontend, "/tokenize", {"messages": CHAT}))["tokens"]
    text = (await post(frontend, "/detokenize", {"model": MODEL, "tokens": tokens}))["prompt"]
    assert "What is a pod?" in text
    _, tokenizer = demo_model()
    assert text == tokenizer.decode(tokens, skip_special_tokens=False)
    assert text != tokenizer.decode(tokens, skip_special_tokens=True)


async def test_token_strs_are_the_vocabularys_own_names(frontend: Frontend) -> None:
    answer = await post(frontend, "/tokenize", {"prompt": TEXT, "return_token_strs": True})
    _, tokenizer = demo_model()
    assert answer["token_strs"] == [tokenizer.backend.id_to_token(token) for token in answer["tokens"]]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "text"),
    [
        ("/tokenize", {}, 400, "prompt", "either prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "prompt", "either prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt", "expected a string"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt", "messages"),
        ("/tokenize", {"messages": CHAT, "add_special_tokens": True}, 400, "add_special_tokens", "template"),
        ("/tokenize", {"messages": []}, 400, "messages", "empty"),
        (
            "/tokenize",
            {"messages": CHAT, "add_generation_prompt": True, "continue_final_message": True},
            400,
            "continue_final_message",
            "exclude each other",
        ),
        (
            "/tokenize",
            {"messages": CHAT, "chat_template_kwargs": {"tools": 1}},
            400,
            "chat_template_kwargs.tools",
            "",
        ),
        ("/tokenize", {"messages": CHAT, "tools": [{}]}, 400, "tools[0].type", "is missing"),
        ("/tokenize", {"prompt": "word " * 200_000}, 400, "prompt", "prompt is too long"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model", MODEL),
        ("/detokenize", {}, 400, "tokens", "is missing"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens", "out of range (0 to 1535)"),
        ("/detokenize", {"tokens": [10**30]}, 400, "tokens[0]", ""),
        ("/detokenize", {"tokens": [1.5]}, 400, "tokens[0]", "expected an integer"),
        ("/detokenize", {"tokens": "1"}, 400, "tokens", "expected an array"),
        ("/detokenize", {"tokens": [1] * 100_000}, 400, "tokens", "send them in parts"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model", MODEL),
    ],
)
async def test_what_cannot_be_done_is_told_with_the_fields_name(
    frontend: Frontend, path: str, body: dict[str, Any], status: int, param: str, text: str
) -> None:
    async with frontend.http() as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert text in error["message"]
