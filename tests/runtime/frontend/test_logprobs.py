"""Log probabilities in OpenAI's and vLLM's forms. The engine's are made up, see scripted.logprobs_of."""

from typing import Any

import msgspec
import pytest

from kvasir.client.text.detokenizer import Detokenizer
from kvasir.frontend.endpoints.chat.answer import ChatAnswer
from kvasir.frontend.endpoints.completions.answer import CompletionAnswer
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.logprobs import CompletionLogprobsWriter, TokenNames, of_chat, of_prompt
from kvasir.link.protocol import Logprobs
from runtime.frontend.harness import ANSWER, MODEL, Frontend, demo_model, script_for
from runtime.frontend.scripted import logprobs_of
from runtime.frontend.test_streaming import CHAT, COMPLETIONS, QUESTION, events_of
from runtime.link_messages import prompt_of

FOX = "Größe 🦊"


async def test_a_chats_logprobs_are_those_of_its_tokens(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            logprobs=True,
            top_logprobs=2,
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    content = logprobs.content or []
    model, _ = demo_model()
    token_ids = [*frontend.engine.script.answer, model.eos_token_ids[0]]
    assert "".join(entry.token for entry in content[:-1]) == ANSWER
    assert [entry.logprob for entry in content] == logprobs_of(token_ids, 0).token
    for entry, token_id in zip(content, token_ids, strict=True):
        assert entry.bytes is not None
        assert bytes(entry.bytes).decode() == entry.token
        assert [top.logprob for top in entry.top_logprobs] == [-0.25, -1.25]
        assert (entry.top_logprobs[0].token == entry.token) == (token_id % 2 == 0)
    await frontend.idle()


async def test_logprobs_without_top_have_empty_lists(frontend: Frontend) -> None:
    async with frontend.http() as client:
        answer = (await client.post(CHAT, json={"messages": QUESTION, "logprobs": True})).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in entries)
    assert frontend.engine.seen.requests[0].params.logprobs == 0


async def test_a_character_in_several_tokens_is_told_by_its_bytes(frontend: Frontend) -> None:
    frontend.engine.script = script_for(FOX)
    async with frontend.http() as client:
        answer = (await client.post(CHAT, json={"messages": QUESTION, "logprobs": True})).json()
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"][:-1]
    assert choice["message"]["content"] == FOX
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == FOX
    assert any("\\x" in entry["token"] for entry in entries)
    assert not any("\ufffd" in entry["token"] for entry in entries)


@pytest.mark.parametrize("text", [ANSWER, FOX])
async def test_streamed_logprobs_joined_are_those_of_the_whole_answer(frontend: Frontend, text: str) -> None:
    frontend.engine.script = script_for(text)
    async with frontend.http() as client:
        chat = (await client.post(CHAT, json={"messages": QUESTION, "logprobs": True, "top_logprobs": 1})).json()
        body = {"prompt": "Hi", "max_tokens": 50, "logprobs": 1}
        completion = (await client.post(COMPLETIONS, json=body)).json()
    events = await events_of(frontend, CHAT, messages=QUESTION, logprobs=True, top_logprobs=1)
    content = [entry for e in events if (lp := e["choices"][0]["logprobs"]) for entry in lp["content"]]
    assert content == chat["choices"][0]["logprobs"]["content"]
    events = await events_of(frontend, COMPLETIONS, **body)
    whole = completion["choices"][0]["logprobs"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for event in events for item in event["choices"][0]["logprobs"][name]] == whole[name]


async def test_completion_logprobs_have_an_entry_per_token(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        answer = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=50, logprobs=2)
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    for token, offset in zip(logprobs.tokens[:-1], logprobs.text_offset, strict=False):
        assert choice.text[offset:].startswith(token)
    assert logprobs.top_logprobs is not None
    for token, own, likely in zip(
        logprobs.tokens, logprobs.token_logprobs or [], logprobs.top_logprobs, strict=True
    ):
        assert likely[token] == own
        assert len(likely) == (2 if own == -0.25 else 3)


async def test_a_completions_logprobs_of_zero_tell_the_tokens_own(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = {"prompt": "Hi", "logprobs": 0, "return_tokens_as_token_ids": True}
        answer = (await client.post(COMPLETIONS, json=body)).json()
    logprobs = answer["choices"][0]["logprobs"]
    answered = frontend.engine.script.answer
    assert logprobs["tokens"][: len(answered)] == [f"token_id:{token_id}" for token_id in answered]
    assert logprobs["top_logprobs"][0] == {logprobs["tokens"][0]: logprobs["token_logprobs"][0]}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_prompt_logprobs_start_at_the_second_token(frontend: Frontend, path: str) -> None:
    prompt = {"messages": QUESTION} if path == CHAT else {"prompt": [20, 21, 24]}
    async with frontend.http() as client:
        body = {**prompt, "prompt_logprobs": 1, "return_token_ids": True}
        answer = (await client.post(path, json=body)).json()
    holder = answer if path == CHAT else answer["choices"][0]
    first, *rest = holder["prompt_logprobs"]
    assert first is None
    tokens = holder["prompt_token_ids"][1:]
    assert len(rest) == len(tokens)
    for token_id, entries in zip(tokens, rest, strict=True):
        assert set(entries) == {str(token_id), str(token_id + token_id % 2)}
        assert entries[str(token_id)]["rank"] == (1 if token_id % 2 == 0 else 100)
        assert entries[str(token_id + token_id % 2)]["logprob"] == -0.25
        assert set(entries[str(token_id)]) == {"logprob", "rank", "decoded_token"}


@pytest.mark.parametrize("prompt", ["What is a pod?", [20, 21, 22, 23]], ids=["text", "tokens"])
async def test_echo_puts_the_prompt_and_its_logprobs_before_the_output(
    frontend: Frontend, prompt: str | list[int]
) -> None:
    _, tokenizer = demo_model()
    async with frontend.openai() as client:
        answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=50, logprobs=1, echo=True)
    choice = answer.choices[0]
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    token_ids = prompt_of(frontend.engine.seen.requests[0])
    assert choice.text == text + ANSWER
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == len(token_ids) + len(frontend.engine.script.answer) + 1
    assert (logprobs.token_logprobs or [])[: len(token_ids)] == [None, *logprobs_of(token_ids[1:], 1).token]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.text_offset[len(token_ids)] == len(text)
    assert logprobs.text_offset == sorted(logprobs.text_offset)


async def test_streamed_echo_is_in_the_first_chunk_of_each_choice(frontend: Frontend) -> None:
    events = await events_of(frontend, COMPLETIONS, prompt=["Hi", "Ho"], n=2, echo=True, logprobs=0, max_tokens=50)
    for index, prompt in enumerate(["Hi", "Hi", "Ho", "Ho"]):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == prompt + ANSWER
        values = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
        assert values[0] is None
        assert None not in values[1:]


async def test_echoed_special_tokens_are_at_their_offsets(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = {"prompt": "A pod is", "echo": True, "logprobs": 0, "skip_special_tokens": False, "max_tokens": 50}
        (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("<|begin|>A pod is")
    for token, offset in zip(logprobs["tokens"][:-1], logprobs["text_offset"], strict=False):
        assert choice["text"][offset:].startswith(token)


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        (COMPLETIONS, {"prompt": [[5] * 25] * 10, "prompt_logprobs": 3}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": [[5] * 25] * 10, "echo": True, "logprobs": 3, "max_tokens": 1}, "logprobs"),
        (COMPLETIONS, {"prompt": "Hi", "logprobs": 3, "n": 5, "max_tokens": 51}, "logprobs"),
        (CHAT, {"messages": QUESTION, "logprobs": True, "top_logprobs": 9, "max_tokens": 101}, "logprobs"),
    ],
)
async def test_too_many_logprobs_are_refused_by_name(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any], param: str
) -> None:
    monkeypatch.setattr(logprobs, "MAX_IN_ANSWER", 999)
    async with frontend.http() as client:
        answer = await client.post(path, json=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert "more than 999" in answer.json()["error"]["message"]
        unbounded = {"messages": QUESTION, "logprobs": True, "top_logprobs": 9}  # ends long before the context does
        assert (await client.post(CHAT, json=unbounded)).status_code == 200
    if "prompt_logprobs" not in asked and not asked.get("echo"):
        await events_of(frontend, path, **asked)  # a stream holds nothing


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_of_no_tokens_is_the_prompt_alone(frontend: Frontend, stream: bool) -> None:
    body = {"prompt": "What is a pod?", "max_tokens": 0, "echo": True, "logprobs": 0}
    if stream:
        (event,) = await events_of(frontend, COMPLETIONS, **body)
        choice = event["choices"][0]
    else:
        async with frontend.http() as client:
            answer = (await client.post(COMPLETIONS, json=body)).json()
        choice = answer["choices"][0]
        assert answer["usage"]["completion_tokens"] == 0
    assert (choice["text"], choice["finish_reason"]) == ("What is a pod?", "length")
    assert len(choice["logprobs"]["tokens"]) == len(prompt_of(frontend.engine.seen.requests[0]))


async def test_a_cut_prompt_is_echoed_as_it_was_cut(frontend: Frontend) -> None:
    async with frontend.http() as client:
        body = {"prompt": [20, 21, 22], "truncate_prompt_tokens": 1, "echo": True, "max_tokens": 0}
        answer = (await client.post(COMPLETIONS, json=body)).json()
    _, tokenizer = demo_model()
    assert answer["choices"][0]["text"] == tokenizer.decode([22])


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan")])
def test_what_json_cannot_say_is_a_very_small_number(logprob: float) -> None:
    _, tokenizer = demo_model()
    names = TokenNames(Detokenizer(tokenizer), as_ids=False)
    impossible = Logprobs([logprob], [9], [[5]], [[logprob]])
    entry = of_chat(names, [5], impossible, 1).content[0]
    assert (entry.logprob, entry.top_logprobs[0].logprob) == (-9999.0, -9999.0)
    stream = Detokenizer(tokenizer).stream(())
    scores = CompletionLogprobsWriter(names, 1).of_output([5], impossible, stream)
    assert scores.token_logprobs == [-9999.0]
    assert scores.top_logprobs == [{names.name(5): -9999.0}]
    own = of_prompt(names, [4, 5], impossible, 1)[1]
    assert own is not None
    assert own["5"].logprob == -9999.0


async def test_many_logprobs_are_written_in_a_thread(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.frontend.generation.logprobs.INLINE_ENTRIES", 0)
    events = await events_of(frontend, COMPLETIONS, prompt="Hi", echo=True, logprobs=2, max_tokens=50)
    assert "".join(event["choices"][0]["text"] for event in events) == "Hi" + ANSWER
    async with frontend.http() as client:
        body = {"messages": QUESTION, "logprobs": True, "prompt_logprobs": 2}
        assert (await client.post(CHAT, json=body)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_with_everything_is_what_the_description_says(frontend: Frontend, path: str) -> None:
    body = {"return_token_ids": True, "prompt_logprobs": 2, "n": 2, "stop": "group"}
    if path == CHAT:
        body |= {"messages": QUESTION, "logprobs": True, "top_logprobs": 2}
    else:
        body |= {"prompt": "Hi", "logprobs": 2, "echo": True, "max_tokens": 50}
    async with frontend.http() as client:
        response = await client.post(path, json=body)
    struct = ChatAnswer if path == CHAT else CompletionAnswer
    assert msgspec.json.encode(msgspec.json.decode(response.content, type=struct)) == response.content
