"""An engine with adapters gives each request its tokens, whatever is computed with it and however it is split."""

import weakref
from pathlib import Path

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.speculation import Speculation
from kvasir.engine import build
from kvasir.executor.worker_host import WorkerHost
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.parallel.parallel_state import SINGLE
from kvasir.request.adapter import Adapter
from kvasir.worker.worker import Worker
from runtime.engine.oracle import Oracle
from runtime.executor.split_engine import SplitEngine
from runtime.hub.adapters.adapter_files import write_adapter
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings, greedy

LORA = LoRAConfig(enable_lora=True, max_loras=2, max_cpu_loras=2)
SIZES = {"self_attn.v_proj": (64, 32), "self_attn.o_proj": (64, 64), "mlp.up_proj": (64, 112)}
SHAPES = {f"model.layers.{layer}.{name}": sizes for layer in range(3) for name, sizes in SIZES.items()}
PROMPT = list(range(2, 30))
TOKENS = 40
Answers = dict[str, list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return load_model_info(save(llama(), tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter | None]:
    paths = [tmp_path_factory.mktemp("adapter") for _ in range(3)]
    written = [write_adapter(path, SHAPES, seed=seed) for seed, path in enumerate(paths)]
    return [*(read_adapter(str(path)).named(f"adapter {place}") for place, path in enumerate(written)), None]


def answers(engine: SplitEngine, adapters: list[Adapter | None], *, together: bool) -> Answers:
    """Two requests for each adapter and for the model itself."""
    for number, adapter in enumerate(adapters * 2):
        prompt = PROMPT[: len(PROMPT) - number // len(adapters)]
        engine.add(str(number), prompt, greedy(TOKENS), adapter=adapter)
        if not together:
            engine.run()
    engine.run()
    assert not any(answer.error for answer in engine.answers.values())
    return {name: answer.tokens for name, answer in engine.answers.items()}


@pytest.fixture(scope="module")
def expected(model: ModelInfo, adapters: list[Adapter | None]) -> Answers:
    engine = SplitEngine(model, engine_settings(lora=LORA))
    found = answers(engine, adapters, together=False)
    engine.close()
    assert len(set(map(tuple, found.values()))) == len(found)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 16, "max_num_batched_tokens": 16, "max_num_seqs": 16},
        {"async_scheduling": True, "max_num_batched_tokens": 40},
        {"executor": ExecutorConfig(tensor_parallel_size=2)},
        {"executor": ExecutorConfig(pipeline_parallel_size=2)},
    ],
    ids=["preempted", "overlapped", "two ranks", "two stages"],
)
def test_each_request_gets_its_own_tokens(
    changes: dict[str, object], model: ModelInfo, adapters: list[Adapter | None], expected: Answers
) -> None:
    engine = SplitEngine(model, engine_settings(lora=LORA, **changes))
    try:
        assert answers(engine, adapters, together=True) == expected
        assert engine.num_preemptions > 0 if "num_blocks" in changes else True
    finally:
        engine.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_drafts_of_adapted_requests_change_no_token(
    ranks: int,
    model: ModelInfo,
    adapters: list[Adapter | None],
    expected: Answers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = Oracle(lambda asked: expected[asked.request_id])
    monkeypatch.setattr(build, "make_drafter", lambda speculation: oracle)
    speculation = Speculation("ngram", 5, max_step_rows=24, prompt_lookup_min=1, prompt_lookup_max=5)
    executor = ExecutorConfig(tensor_parallel_size=ranks)
    engine = SplitEngine(model, engine_settings(lora=LORA, speculation=speculation, executor=executor))
    try:
        assert answers(engine, adapters, together=True) == expected
        assert oracle.accepted[False] > 50
        assert oracle.num_rejected > 50
    finally:
        engine.close()


def test_a_resumed_request_goes_on_with_its_adapter(
    model: ModelInfo, adapters: list[Adapter | None], expected: Answers
) -> None:
    engine = SplitEngine(model, engine_settings(lora=LORA))
    engine.add("1", PROMPT, greedy(TOKENS), expected["1"][:4], adapter=adapters[1])
    engine.run()
    assert engine.answers["1"].tokens == expected["1"][4:]
    assert engine.num_hit_tokens == 0
    engine.close()


def test_an_unfit_adapter_is_an_answer_and_no_failure(model: ModelInfo, tmp_path: Path) -> None:
    engine = SplitEngine(model, engine_settings(lora=LORA))
    unfit = read_adapter(str(write_adapter(tmp_path, {"model.layers.0.self_attn.q_proj": (8, 8)}))).named("other")
    engine.add("bad", PROMPT, greedy(4), adapter=unfit)
    engine.add("good", PROMPT, greedy(4))
    engine.run()
    assert (
        "the adapter 'other' does not fit this model: model.layers.0.self_attn.q_proj"
        in engine.answers["bad"].error
    )
    assert len(engine.answers["good"].tokens) == 4
    engine.close()


def test_a_closed_worker_keeps_no_model(model: ModelInfo) -> None:
    host = WorkerHost(engine_settings(lora=LORA), model, SINGLE)
    host.worker.load(lambda done, total: None)
    assert isinstance(host.worker, Worker)
    loaded = weakref.ref(host.worker._model)
    assert loaded() is not None
    host.worker.close()
    assert loaded() is None, "the calls of the host refer to it"
