from collections.abc import Iterator

import pytest

from kvasir import LLM, SamplingParams
from runtime.worker.plugins import install_plugins

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module", params=[1, 2])
def llm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        install_plugins(tmp_path_factory.mktemp("plugins"), patch)
        options = {"tensor_parallel_size": request.param, "worker_extension_cls": "extension"}
        with LLM("demo://", max_model_len=256, kv_cache_memory_bytes="16Mi", threads=1, **options) as llm:
            yield llm


def num_workers(llm: LLM) -> int:
    return llm._engine.settings.executor.tensor_parallel_size


def test_every_worker_answers_in_the_order_of_ranks(llm: LLM) -> None:
    before = llm.generate("Kvasir is", GREEDY)[0].outputs[0].text
    assert llm.collective_rpc("rank") == [["rank", rank] for rank in range(num_workers(llm))]
    for args, kwargs in ((([1, 2], 3), {}), (([1, 2],), {"factor": 3}), ((), {"values": [1, 2], "factor": 3})):
        assert llm.collective_rpc("scaled", args=args, kwargs=kwargs) == [[3.0, 6.0]] * num_workers(llm)
    assert llm.generate("Kvasir is", GREEDY)[0].outputs[0].text == before


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("broken", "RuntimeError: as asked"),
        ("hidden", "CallError: no call 'hidden': there are broken, rank"),
        ("warm_up", "CallError: no call 'warm_up': there are broken, rank"),
        ("unsendable", "TypeError: Encoding objects of type Worker is unsupported"),
    ],
)
def test_a_call_that_fails_names_its_worker(llm: LLM, method: str, error: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        llm.collective_rpc(method)
    if num_workers(llm) == 1:
        assert str(caught.value).startswith(f"{method} failed: {error}")
    else:
        assert str(caught.value).startswith(f"{method} failed on worker 0: {error}")
        assert f"; on worker 1: {error}" in str(caught.value)
    assert llm.collective_rpc("worker_class") == ["Worker"] * num_workers(llm)


def test_only_names_and_plain_values_are_sent(llm: LLM) -> None:
    with pytest.raises(TypeError, match="give the name of a worker's method"):
        llm.collective_rpc(num_workers)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Encoding objects of type LLM is unsupported"):
        llm.collective_rpc("scaled", args=(llm,))
    with llm._running, pytest.raises(RuntimeError, match="another thread"):
        llm.collective_rpc("rank")


def test_a_closed_llm_has_no_workers() -> None:
    llm = LLM("demo://", max_model_len=256, kv_cache_memory_bytes="16Mi", threads=1)
    with llm, pytest.raises(RuntimeError, match=r"no call 'rank': there are start_profile, stop_profile;"):
        llm.collective_rpc("rank")
    with pytest.raises(RuntimeError, match="closed"):
        llm.collective_rpc("rank")
