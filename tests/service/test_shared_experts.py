import os
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import Qwen3MoeConfig

from kvasir import LLM, SamplingParams
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from runtime.models.tiny import MOE, decoder, save
from service.running import Service, running

PROMPTS = ["Kvasir is", "What is Kvasir?", "An engine", "A pod"]
FIELDS: dict[str, Any] = {"temperature": 1.0, "seed": 4, "max_tokens": 20, "ignore_eos": True}
OPTIONS = ("--dtype", "float32", "--kv-cache-memory-bytes", "64Mi", "--device", "cpu", "--port", "0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mixture with the tokenizer of the demo."""
    path, demo = tmp_path_factory.mktemp("moe"), fetch("demo://", weights=False)
    save(decoder(Qwen3MoeConfig, **MOE, vocab_size=load_model_info(demo).vocab_size), path)
    for file in demo.glob("*token*"):
        shutil.copy(file, path)
    return path


def answers(service: Service) -> list[str]:
    url = f"{service.url}/v1/completions"
    single = [
        httpx.post(url, json={"prompt": prompt, "data_parallel_rank": number % 2, **FIELDS}, timeout=60)
        for number, prompt in enumerate(PROMPTS)
    ]
    at_once = httpx.post(url, json={"prompt": PROMPTS, **FIELDS}, timeout=60)
    texts = [answer.raise_for_status().json()["choices"][0]["text"] for answer in single]
    assert [choice["text"] for choice in at_once.raise_for_status().json()["choices"]] == texts
    return texts


def test_engines_that_share_experts_serve_and_start_again(model: Path) -> None:
    with LLM(str(model), dtype="float32", kv_cache_memory_bytes="64Mi") as llm:
        expected = [output.outputs[0].text for output in llm.generate(PROMPTS, SamplingParams(**FIELDS))]
    sharing = ("--data-parallel-size", "2", "--enable-expert-parallel")
    with running("serve", str(model), *sharing, *OPTIONS) as service:
        assert answers(service) == expected
        before = service.engines()
        os.kill(before[1].pid, signal.SIGKILL)
        service.read_until(r"rank 1: (Restarting|Waiting).*SIGKILL")
        for _ in before:
            service.read_until(r"rank [01]: Ready")
        assert not {part.pid for part in before} & {part.pid for part in service.engines()}
        assert answers(service) == expected
