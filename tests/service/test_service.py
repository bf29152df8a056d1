"""A whole service as its users see it: the OpenAI client, a load with disconnects, nothing left afterwards."""

import asyncio
import json
import random
import subprocess
import sys
import time

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from kvasir_contract.endpoints import LIVE_PATH, METRICS_PATH, READY_PATH, STATUS_PATH
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import StatusReport
from service.running import Service

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Kvasir?"}]


def test_the_openai_client_gets_the_same_answer_in_every_way(service: Service) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    answer = whole.choices[0].message.content or ""
    assert "serves large language models" in answer
    assert "If an engine dies, another engine continues its requests" in answer
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer
    streamed = chunks[-1].usage
    assert streamed is not None
    assert whole.usage is not None
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )

    async def ask() -> list[str]:
        many = openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
        answers = await asyncio.gather(
            *(many.chat.completions.create(model=model, messages=QUESTION, temperature=0) for _ in range(16))
        )
        return [one.choices[0].message.content or "" for one in answers]

    assert set(asyncio.run(ask())) == {answer}, "greedy output depends on the batch or the rank"


def test_the_printed_curl_lines_work_as_printed(service: Service) -> None:
    lines = [line.strip() for line in service.text.splitlines() if line.strip().startswith("curl ")]
    printed = [
        json.loads(subprocess.run(line, shell=True, capture_output=True, text=True, check=True, timeout=60).stdout)
        for line in lines
    ]
    plain, tool, form = (answer["choices"][0] for answer in printed)
    question = QUESTION[0]["content"]
    assert isinstance(question, str)
    assert question in lines[0]
    assert "Kvasir" in plain["message"]["content"]
    assert tool["finish_reason"] == "tool_calls"
    (call,) = tool["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "get_weather",
        {"city": "Paris"},
    )
    assert json.loads(form["message"]["content"]) == {"name": "Ada", "age": 36}


def test_chat_asks_once_from_the_command_line(service: Service) -> None:
    command = [
        sys.executable,
        "-m",
        "kvasir.cli.main",
        "chat",
        service.url,
        "-m",
        "What is Kvasir?",
        "--temperature",
        "0",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "serves large language models" in printed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(service: Service, temperature: float) -> None:
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:

        async def ask(prompt: list[int], seed: int) -> list[int]:
            body = {
                "model": "demo",
                "prompt": prompt,
                "max_tokens": 24,
                "seed": seed,
                "temperature": temperature,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            answer = await http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return list(answer.json()["choices"][0]["token_ids"])

        rng = random.Random(0)
        prompts = [rng.choices(range(20, 500), k=rng.randint(1, 200)) for _ in range(32)]
        alone = [await ask(prompt, seed) for seed, prompt in enumerate(prompts)]
        crowd = await asyncio.gather(*(ask(prompt, seed) for seed, prompt in enumerate(prompts)))
        assert list(crowd) == alone


async def test_a_thousand_requests_with_disconnects_leave_nothing(service: Service) -> None:
    """64 streams at a time; a tenth hang up in the middle; all others finish with their number of tokens."""
    rng = random.Random(1)
    jobs = iter([(rng.choices(range(20, 500), k=rng.randint(1, 60)), rng.randint(1, 24)) for _ in range(1000)])
    finished = hung_up = 0
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=service.url, timeout=120, limits=limits) as http:

        async def client() -> None:
            nonlocal finished, hung_up
            for prompt, max_tokens in jobs:
                hang_up = rng.random() < 0.1
                body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
                body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
                async with http.stream("POST", "/v1/completions", json=body) as answer:
                    assert answer.status_code == 200
                    usage = None
                    async for line in answer.aiter_lines():
                        if hang_up and line:
                            break
                        if line.startswith("data: {"):
                            usage = json.loads(line[6:]).get("usage") or usage
                    if hang_up:
                        hung_up += 1
                        continue
                    assert usage is not None
                    assert usage["completion_tokens"] == max_tokens
                    finished += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(64):
                tasks.create_task(client())
    assert finished + hung_up == 1000
    assert hung_up > 50
    _wait_until_idle(service)


def test_every_process_has_a_port_for_probes(service: Service) -> None:
    parts = service.parts()
    assert [part.name for part in parts] == ["engine-0", "engine-1", "frontend"]
    for part in parts:
        assert httpx.get(part.ops + LIVE_PATH).status_code == 200
        assert httpx.get(part.ops + READY_PATH).status_code == 200
        report = StatusReport.from_json(httpx.get(part.ops + STATUS_PATH).content)
        assert (report.phase, report.reason, report.message) == (Phase.READY, None, "")
        assert "python_info" in httpx.get(part.ops + METRICS_PATH).text or part.name != "frontend"


def _wait_until_idle(service: Service) -> None:
    """No row, block or request is left; the engines assert their own invariants when they go idle."""
    deadline = time.monotonic() + 60
    while True:
        left = {
            f"{engine.name} {name}": value
            for engine in service.engines()
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
            if (value := service.metric(engine.ops, name))
        }
        if not left:
            break
        assert time.monotonic() < deadline, f"still held after the load: {left}"
        time.sleep(0.05)
    assert len(service.engines()) == 2, "an engine died of the load"
