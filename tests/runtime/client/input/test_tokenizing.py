import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from kvasir.client.input.input_processor import INLINE_CHARACTERS, InputProcessor
from kvasir.client.request_errors import InvalidRequest, TooManyRequests
from kvasir.hub.chat_templates.chat_template import RENDER_SECONDS, ChatTemplate
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from runtime.client import trained
from runtime.client.input.processors import LIMIT, TEMPLATE, processor_of


class SlowTokenizer:
    """Encodes when the test allows it."""

    longest_token = 1000

    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: list[int] = []

    def encode(self, text: str, add_special_tokens: bool, keep: int | None = None) -> list[int]:
        self.threads.append(threading.get_ident())
        self.go.wait(60)
        return [1]


async def test_a_chat_becomes_the_tokens_of_its_template(processor: InputProcessor, tokenizer: Tokenizer) -> None:
    token_ids = await processor.render_chat([{"role": "user", "content": "hello"}])
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "<|user|>hello<|assistant|>"
    assert token_ids[0] in tokenizer.special_ids


async def test_messages_refused_by_the_template_are_invalid(processor: InputProcessor) -> None:
    with pytest.raises(InvalidRequest, match="unknown role") as caught:
        await processor.render_chat([{"role": "nobody", "content": "hello"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("length", [1, INLINE_CHARACTERS + 1])
async def test_text_that_is_no_unicode_is_refused(processor: InputProcessor, length: int) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        await processor.tokenize("\ud800" * length)


async def test_only_short_texts_are_tokenized_on_the_event_loop() -> None:
    slow = SlowTokenizer()
    processor = processor_of(slow)  # type: ignore[arg-type]
    long = asyncio.create_task(processor.tokenize("x" * (INLINE_CHARACTERS + 1)))
    await asyncio.sleep(0)
    assert not long.done()
    slow.go.set()
    assert await processor.tokenize("x") == [1]
    await long
    assert threading.get_ident() in slow.threads
    assert len(set(slow.threads)) == 2
    processor.close()


async def test_only_so_many_long_texts_wait() -> None:
    slow = SlowTokenizer()
    processor = processor_of(slow)  # type: ignore[arg-type]
    text = "x" * (INLINE_CHARACTERS + 1)
    waiting = [asyncio.create_task(processor.tokenize(text)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await processor.tokenize(text)
    slow.go.set()
    await asyncio.gather(*waiting)
    assert await processor.tokenize(text) == [1]
    processor.close()


async def test_text_above_any_context_is_refused_untokenized() -> None:
    slow = SlowTokenizer()
    processor = processor_of(slow, ChatTemplate(TEMPLATE, {}))  # type: ignore[arg-type]
    text = "x" * (LIMIT * slow.longest_token + 1)
    with pytest.raises(InvalidRequest, match=f"{len(text)} characters. Shorten it") as caught:
        await processor.tokenize(text)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(InvalidRequest, match="characters") as caught:
        await processor.render_chat([{"role": "user", "content": text}])
    assert caught.value.param == "messages"
    assert not slow.threads
    slow.go.set()
    assert await processor.tokenize(text[1:]) == [1]
    processor.close()


async def test_of_a_prompt_that_is_cut_the_last_tokens_are_left(processor: InputProcessor) -> None:
    whole = await processor.tokenize("The quick brown fox jumps over the lazy dog")
    assert await processor.tokenize("The quick brown fox jumps over the lazy dog", keep=3) == whole[-3:]
    assert await processor.tokenize("The quick brown fox", keep=1000) == await processor.tokenize(
        "The quick brown fox"
    )
    chat = await processor.render_chat([{"role": "user", "content": "hello"}])
    assert await processor.render_chat([{"role": "user", "content": "hello"}], 2) == chat[-2:]


async def test_the_special_tokens_around_a_prompt_that_is_cut_stay(tmp_path: Path) -> None:
    backend = trained.byte_level()
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 1)])
    processor = processor_of(load_tokenizer(trained.save(backend, tmp_path)))
    bare = await processor.tokenize("The quick brown fox", add_special_tokens=False)
    assert await processor.tokenize("The quick brown fox", keep=4) == [0, *bare[-2:], 1]
    assert await processor.tokenize("The quick brown fox", add_special_tokens=False, keep=2) == bare[-2:]
    assert await processor.tokenize("The quick brown fox", keep=1) == [1]
    assert await processor.tokenize("", keep=1) == [1]


COUNT = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


async def test_slow_template_is_stopped_in_a_thread(tokenizer: Tokenizer) -> None:
    processor = processor_of(tokenizer, ChatTemplate(COUNT, {}))
    started = time.thread_time()
    with pytest.raises(InvalidRequest, match="was stopped: it takes too long") as caught:
        await processor.render_chat([{"role": "user", "content": "hello"}])
    assert caught.value.param == "messages"
    assert time.thread_time() - started < RENDER_SECONDS / 2  # of the event loop's thread
    processor.close()


async def test_a_variable_that_makes_a_chat_too_long_is_refused(tokenizer: Tokenizer) -> None:
    processor = processor_of(tokenizer, ChatTemplate("{% for m in messages %}{{ eos_token }}{% endfor %}", {}))
    with pytest.raises(InvalidRequest, match="much longer than the context"):
        await processor.render_chat([{"role": "user", "content": ""}] * 1000, eos_token="x" * 10**6)
    processor.close()


@pytest.mark.parametrize("variables", [{"a": list(range(100))}, {str(n): n for n in range(100)}])
async def test_a_chat_with_many_variables_is_rendered_in_a_thread(
    tokenizer: Tokenizer, variables: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    template, threads = ChatTemplate(TEMPLATE, {}), list[int]()
    render = template.render

    def noted(*args: Any, **kwargs: Any) -> str:
        threads.append(threading.get_ident())
        return render(*args, **kwargs)

    monkeypatch.setattr(template, "render", noted)
    processor = processor_of(tokenizer, template)
    await processor.render_chat([{"role": "user", "content": "hello"}], few=1)
    await processor.render_chat([{"role": "user", "content": "hello"}], **variables)
    assert [each == threading.get_ident() for each in threads] == [True, False]
    processor.close()
