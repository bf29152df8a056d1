"""Every kind of request gives the same answer, byte for byte, if its engines die or drain at every k-th token.

The frontend, the link and the engines are real, with the demo model in float32. Without a prefix cache, each engine
computes the prompt and all tokens so far again. The log probabilities are compared without a tolerance, because a
prefill gives the same bits as decoding.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio

from kvasir.config.process_settings import LinkConfig
from runtime.frontend.harness import Frontend, demo_model, running_frontend
from runtime.frontend.scripted import TIMEOUT
from service.mortal_engine import NEVER, MortalEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 16
PROMPT = "Kvasir serves large language models on"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a pod?"}]
SAMPLED = {"temperature": 1.0, "seed": 11}
COMPLETIONS = "/v1/completions"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {**SAMPLED, "top_p": 0.9, "top_k": 50},
    "penalties": {
        **SAMPLED,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.3,
        "allowed_token_ids": [380, 437, 558, 944, 975, 1167, 1439, 1528],  # so few that the penalties decide
        "ignore_eos": True,
    },
    "min tokens": {**SAMPLED, "min_tokens": 12, "logit_bias": {"0": 5.0, "1": 5.0, "2": 5.0}},
    "bad words": {"temperature": 0, "bad_words": ["engine", " the"], "ignore_eos": True},
    "choices": {**SAMPLED, "n": 3},
    "logprobs": {**SAMPLED, "logprobs": 3},
    "echo with logprobs": {"temperature": 0, "echo": True, "logprobs": 2, "prompt_logprobs": 1, "ignore_eos": True},
    "stop string": {"temperature": 0, "ignore_eos": True},  # its stop string is a part of the greedy answer
    "chat": {**SAMPLED, "messages": CHAT, "logprobs": True, "top_logprobs": 2},
}


@dataclass
class Service:
    frontends: list[Frontend]
    engines: list[MortalEngine]

    @property
    def deaths(self) -> int:
        return sum(engine.deaths for engine in self.engines)

    def lose_every(self, messages: int, *, drain: bool = False) -> None:
        for engine in self.engines:
            engine.live_for(messages, drains=drain)


class Deaths:
    """Permits one death after the other, so that each frontend has a usable engine at any time."""

    def __init__(self, frontends: list[Frontend]) -> None:
        self._frontends = frontends
        self._lock = asyncio.Lock()
        self._dead: set[str] = set()

    async def permit(self, incarnation: str) -> None:
        """Return once every frontend has an engine that lives on."""
        async with self._lock:
            self._dead.add(incarnation)
            for frontend in self._frontends:
                await frontend.until(partial(self._has_another, frontend))

    def _has_another(self, frontend: Frontend) -> bool:
        return bool(usable(frontend) - self._dead)


@asynccontextmanager
async def running(num_frontends: int, *speculative_configs: str) -> AsyncIterator[Service]:
    """`speculative_configs`: of the first ranks."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        frontends = [
            await stack.enter_async_context(running_frontend(engine=False, max_lost_engines=1000))
            for _ in range(num_frontends)
        ]

        deaths = Deaths(frontends)

        def permit_death(incarnation: str) -> None:
            asyncio.run_coroutine_threadsafe(deaths.permit(incarnation), loop).result(TIMEOUT)

        addresses = tuple(frontend.config.link.link[0] for frontend in frontends)
        link = LinkConfig(link=addresses)
        configs = (*speculative_configs, "{}", "{}")
        engines = [MortalEngine(link, demo_model()[0], rank, permit_death, configs[rank]) for rank in range(2)]
        for engine in engines:
            stack.push_async_callback(asyncio.to_thread, engine.close)
        for frontend in frontends:
            await frontend.until(partial(_has_both, frontend))
        yield Service(frontends, engines)


def _has_both(frontend: Frontend) -> bool:
    return len(usable(frontend)) == 2


def usable(frontend: Frontend) -> set[str]:
    return {engine.incarnation for engine in frontend.service.llm.engines.values() if engine.usable}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Service]:
    async with running(1) as result:
        yield result


async def ask(http: httpx.AsyncClient, kind: str, *, stream: bool, prompt: str = PROMPT) -> Any:
    """Return the answer without its ids and times; of a stream, with the chunks of each choice joined."""
    body = {"model": "demo", "max_tokens": TOKENS, **KINDS[kind]}
    path = "/v1/chat/completions" if "messages" in body else COMPLETIONS
    if "messages" not in body:
        body["prompt"] = prompt
    if kind == "stop string":
        body["stop"] = [await stop_string(http)]
    if not stream:
        answer = (await http.post(path, json=body)).raise_for_status().json()
        return {name: value for name, value in answer.items() if name not in ("id", "created")}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    joined: dict[Any, Any] = {}
    body.pop("prompt_logprobs", None)  # not in streams
    async with http.stream("POST", path, json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                join(joined, json.loads(line.removeprefix("data: ")))
    return joined


async def stop_string(http: httpx.AsyncClient) -> str:
    """Return a late part of the greedy answer, of several tokens: each of them is held back until the next one."""
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": TOKENS, **KINDS["stop string"]}
    answer = (await http.post(COMPLETIONS, json=body)).raise_for_status().json()
    text: str = answer["choices"][0]["text"]
    return text[-14:-3]


def join(joined: dict[Any, Any], chunk: dict[str, Any]) -> None:
    """Add a chunk: texts and lists of a choice are appended, other values replace the earlier ones."""
    assert "error" not in chunk, chunk
    if chunk.get("usage"):
        joined["usage"] = chunk["usage"]
    for choice in chunk["choices"]:
        add(joined.setdefault(choice["index"], {}), choice)


def add(joined: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            add(joined.setdefault(name, {}), value)
        elif isinstance(value, str | list) and name not in ("finish_reason", "role", "object"):
            joined[name] = joined.get(name, type(value)()) + value
        elif value is not None:
            joined[name] = value


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_stay_the_same_whatever_is_lost(service: Service, kind: str) -> None:
    (frontend,) = service.frontends
    async with frontend.http() as http:
        for stream in (False, True):
            service.lose_every(NEVER)
            undisturbed = await ask(http, kind, stream=stream)
            for messages in (1, 2, 5):
                before = service.deaths
                service.lose_every(messages)
                assert await ask(http, kind, stream=stream) == undisturbed
                assert service.deaths > before
    await frontend.idle()


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_stay_the_same_while_engines_drain(service: Service, kind: str) -> None:
    (frontend,) = service.frontends
    async with frontend.http() as http:
        for stream in (False, True):
            service.lose_every(NEVER)
            undisturbed = await ask(http, kind, stream=stream)
            for messages in (1, 3):
                before = moves(frontend, "returned")
                service.lose_every(messages, drain=True)
                assert await ask(http, kind, stream=stream) == undisturbed
                assert moves(frontend, "returned") > before
    await frontend.idle()


def moves(frontend: Frontend, reason: str) -> float:
    """Return the number of requests that moved for this reason. All moves must be exact."""
    text = frontend.service.metrics.render_own().decode()
    assert 'exact="false"' not in text
    counts = re.findall(rf'^kvasir:migrations_total{{.*reason="{reason}".*}} (\S+)$', text, re.MULTILINE)
    return sum(map(float, counts))


async def test_each_of_two_frontends_gets_its_answers() -> None:
    kinds = ("seeded", "penalties", "choices", "chat")
    async with running(2) as service, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(frontend.http()) for frontend in service.frontends]
        undisturbed = {kind: await ask(clients[0], kind, stream=True) for kind in kinds}
        service.lose_every(3)
        asked = [(kind, http) for kind in kinds for http in clients]
        answers = await asyncio.gather(*(ask(http, kind, stream=True) for kind, http in asked))
        for (kind, _), answer in zip(asked, answers, strict=True):
            assert answer == undisturbed[kind]
        assert service.deaths >= 4
        for frontend in service.frontends:
            await frontend.idle()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mixed() -> AsyncIterator[Service]:
    """A service whose rank 0 drafts tokens, and whose rank 1 does not."""
    async with running(1, '{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}') as result:
        yield result


async def test_streams_move_between_ranks_with_and_without_drafts(mixed: Service) -> None:
    (frontend,) = mixed.frontends
    async with frontend.http() as http:
        text = (await ask(http, "greedy", stream=False))["choices"][0]["text"]
        for kind in KINDS:
            asked = partial(ask, http, kind, stream=True, prompt=f"{PROMPT}{text}{PROMPT}")  # it can be copied
            mixed.lose_every(NEVER)
            undisturbed = await asked()
            before = mixed.deaths
            mixed.lose_every(1)  # drafts may give an answer in few messages
            assert await asked() == undisturbed
            assert mixed.deaths > before
    drafting, plain = (engine.core.scheduler.draft_stats for engine in mixed.engines)
    assert (drafting is not None and sum(drafting.accepted) > 20, plain) == (True, None)
    await frontend.idle()
