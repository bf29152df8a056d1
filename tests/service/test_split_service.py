"""A service whose engine is split over two processes answers as one process does, and leaves none behind."""

import httpx
import pytest

from kvasir import LLM, SamplingParams
from runtime.executor.processes import children_of, seconds_until_gone
from service.running import running

PROMPTS = ["Kvasir is", "What is Kvasir?", "An engine"]
MAX_SECONDS = 20.0


@pytest.mark.parametrize("split", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_a_split_service_answers_as_one_process(split: str) -> None:
    with LLM("demo://", dtype="float32", kv_cache_memory_bytes="64Mi") as llm:
        params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True)
        expected = [output.outputs[0].text for output in llm.generate(PROMPTS, params)]
    options = ("--dtype", "float32", "--kv-cache-memory-bytes", "64Mi", "--device", "cpu", "--port", "0")
    with running("serve", "demo://", split, "2", *options) as service:
        fields = {"prompt": PROMPTS, "temperature": 1.0, "seed": 4, "max_tokens": 30, "ignore_eos": True}
        answer = httpx.post(f"{service.url}/v1/completions", json=fields, timeout=60)
        assert [choice["text"] for choice in answer.raise_for_status().json()["choices"]] == expected
        [engine] = service.engines()
        workers = children_of(engine.pid)
        assert len(workers) == 2
    seconds_until_gone(workers, MAX_SECONDS)
