"""The whole engine, scheduler and worker together, against transformers: token for token in float32.

A divergence passes only where the reference's two best logits lie within 1e-3 of each other.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvasir.config.resolve import ResolvedEngine
from kvasir.engine.core import EngineCore
from kvasir.engine.ingest import Ingest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.hub.source import fetch
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from runtime.models.tiny import FAMILIES, MODELS, gpt2, llama, save
from runtime.worker.driver import engine_settings

NEAR_TIE = 1e-3
BLOCK_SIZE = 16


MODEL_NAMES = ("demo", "llama", "gpt2")


@pytest.fixture(scope="module", params=MODEL_NAMES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, ModelInfo]:
    if request.param == "demo":
        path = fetch("demo://", weights=True)
        reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    else:
        reference = {"llama": llama, "gpt2": gpt2}[request.param]()
        path = save(reference, tmp_path_factory.mktemp(request.param))
    return reference, load_model_info(Path(path))


def generate(
    info: ModelInfo,
    prompts: list[list[int]],
    counts: list[int],
    *,
    blocks: int = 400,
    block_size: int = BLOCK_SIZE,
    budget: int = 2048,
    together: bool = True,
    max_in_flight: int = 1,
) -> tuple[list[list[int]], Scheduler]:
    """The output of each prompt, all sent at once or one after the other; and the scheduler with its counters."""
    settings: ResolvedEngine = engine_settings(
        max_num_batched_tokens=budget,
        max_num_seqs=min(32, budget),
        num_blocks=blocks,
        block_size=block_size,
        async_scheduling=max_in_flight > 1,
    )
    executor = InProcessExecutor(settings, info)
    executor.start(lambda done, total: None, failed=lambda error: None)
    layout = executor.kv_layout()
    executor.allocate_kv_cache(layout.num_blocks, settings.max_model_len)
    cache = KVManager(layout, prefix_caching=settings.enable_prefix_caching, longest_chunk=budget)
    max_model_len = min(settings.max_model_len, cache.longest_sequence - 1)
    scheduler = Scheduler(
        cache,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        eos_token_ids=info.eos_token_ids,
        lookahead=max_in_flight - 1,
    )
    ingest = Ingest(info.vocab_size, max_model_len, cache.cache_block_size, TokenBudget(2**20))
    core = EngineCore(scheduler, executor, ingest, max_in_flight=max_in_flight)
    outputs: dict[str, list[int]] = {}
    for index, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        params = SamplingParams(max_tokens=count, seed=0, temperature=0.0, ignore_eos=True)
        core.add("frontend", AddRequest(str(index), 1, packed(prompt), b"", params))
        outputs[str(index)] = []
        if not together:
            run(core, outputs)
    run(core, outputs)
    executor.shutdown()
    return list(outputs.values()), scheduler


def run(core: EngineCore, outputs: dict[str, list[int]]) -> None:
    """Step until there is nothing to do."""
    while core.has_work:
        for step in core.step().values():
            for output in step.outputs:
                assert output.position == len(outputs[output.request_id])
                outputs[output.request_id] += output.token_ids
    core.check_idle()


@torch.inference_mode()
def assert_greedy(reference: PreTrainedModel, prompt: list[int], outputs: list[int], count: int) -> None:
    assert len(outputs) == count
    logits = reference(torch.tensor([prompt + outputs])).logits[0, len(prompt) - 1 : -1].float()
    best = logits.topk(2).values
    for place, token in enumerate(outputs):
        if token != int(logits[place].argmax()):
            gap = float(best[place, 0] - best[place, 1])
            behind = float(best[place, 0] - logits[place, token])
            assert max(gap, behind) <= NEAR_TIE, f"output {place} is token {token}, {behind:.4f} behind the best"


def requests(info: ModelInfo, lengths: list[int], shortest: int) -> tuple[list[list[int]], list[int]]:
    """Random prompts of these lengths, and how many tokens to generate for each."""
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, info.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    return prompts, [shortest + index % 9 for index in range(len(lengths))]


def assert_all_greedy(
    reference: PreTrainedModel, prompts: list[list[int]], outputs: list[list[int]], counts: list[int]
) -> None:
    for prompt, output, count in zip(prompts, outputs, counts, strict=True):
        assert_greedy(reference, prompt, output, count)


MIXED = [1, 2, 15, 16, 17, 100, 31, 32, *range(3, 27)]
CASES: dict[str, tuple[list[int], int, dict[str, Any]]] = {
    "alone": ([37], 24, {}),
    "32 mixed lengths": (MIXED, 8, {}),
    "chunks of 16 tokens": (MIXED, 8, {"budget": 16}),
    "a pool so small that it preempts": ([14, 15, 9, 30, 12], 100, {"blocks": 11}),
}


# every pair of a model, a case and a number in flight, but not every triple
@pytest.mark.parametrize(
    ("model", "case", "max_in_flight"),
    [
        (model, case, (1, 2, 4)[(place + number) % 3])
        for place, model in enumerate(MODEL_NAMES)
        for number, case in enumerate(CASES)
    ],
    indirect=["model"],
)
def test_greedy_output_equals_transformers(
    model: tuple[PreTrainedModel, ModelInfo], case: str, max_in_flight: int
) -> None:
    reference, info = model
    lengths, shortest, options = CASES[case]
    prompts, counts = requests(info, lengths, shortest)
    outputs, scheduler = generate(info, prompts, counts, **options, max_in_flight=max_in_flight)
    assert (scheduler.num_preemptions > 0) == ("blocks" in options), f"{scheduler.num_preemptions} preemptions"
    assert_all_greedy(reference, prompts, outputs, counts)


# every pair of a budget, an order and a number in flight
@pytest.mark.parametrize(
    ("budget", "together", "max_in_flight"), [(2048, True, 1), (2048, False, 2), (24, True, 2), (24, False, 1)]
)
def test_greedy_output_with_a_cached_prefix_equals_transformers(
    model: tuple[PreTrainedModel, ModelInfo], budget: int, together: bool, max_in_flight: int
) -> None:
    """Prompts that share 37 tokens, or all they have, with others that came before or come with them."""
    reference, info = model
    random, _ = requests(info, [37, 1, 20, 64, 33], 0)
    shared, *rests = random
    prompts = [shared, *(shared + rest for rest in rests), shared, shared[:32], shared[:16] + rests[2]]
    counts = [9] * len(prompts)
    outputs, scheduler = generate(
        info, prompts, counts, budget=budget, together=together, max_in_flight=max_in_flight
    )
    assert scheduler.blocks.num_hit_tokens >= 4 * 32
    assert_all_greedy(reference, prompts, outputs, counts)


# ------------------------------------------------------------------------------------------------ sliding windows


WINDOWED_NAMES = ("gemma3", "mistral", "cohere2")


@pytest.fixture(scope="module", params=WINDOWED_NAMES)
def windowed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, ModelInfo]:
    """Gemma 3 and Cohere 2 with windows in some layers, Mistral in all."""
    reference = {**MODELS, **FAMILIES}[request.param]()
    return reference, load_model_info(save(reference, tmp_path_factory.mktemp(request.param)))


WINDOWED_CASES: dict[str, tuple[list[int], int, dict[str, Any]]] = {
    "alone": ([37], 60, {}),
    "32 mixed lengths": (MIXED, 30, {}),
    "chunks of 16 tokens": (MIXED, 8, {"budget": 16}),
    "a pool of windows": ([100, 200, 150], 20, {"budget": 8, "blocks": 90, "block_size": 4}),
}


@pytest.mark.parametrize(
    ("windowed", "case", "max_in_flight"),
    sorted(
        (WINDOWED_NAMES[(number + place) % 2], case, max_in_flight)
        for number, case in enumerate(WINDOWED_CASES)
        for place, max_in_flight in enumerate((1, 2, 4))
    ),
    indirect=["windowed"],
)
def test_greedy_output_with_windows_equals_transformers(
    windowed: tuple[PreTrainedModel, ModelInfo], case: str, max_in_flight: int
) -> None:
    reference, info = windowed
    lengths, shortest, options = WINDOWED_CASES[case]
    prompts, counts = requests(info, lengths, shortest)
    outputs, scheduler = generate(info, prompts, counts, **options, max_in_flight=max_in_flight)
    assert scheduler.num_preemptions == 0
    assert_all_greedy(reference, prompts, outputs, counts)


@pytest.mark.parametrize("windowed", ["gemma3"], indirect=True)
@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
def test_greedy_output_of_preempted_windows_equals_transformers(
    windowed: tuple[PreTrainedModel, ModelInfo], max_in_flight: int
) -> None:
    reference, info = windowed
    prompts, counts = requests(info, [14, 15, 9, 30, 12], 100)
    outputs, scheduler = generate(
        info, prompts, counts, budget=8, blocks=55, block_size=4, max_in_flight=max_in_flight
    )
    assert scheduler.num_preemptions > 0
    assert_all_greedy(reference, prompts, outputs, counts)


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one after the other"])
@pytest.mark.parametrize("budget", [2048, 24])
def test_windows_and_a_cached_prefix_equal_transformers(
    windowed: tuple[PreTrainedModel, ModelInfo], together: bool, budget: int
) -> None:
    reference, info = windowed
    random, _ = requests(info, [70, 1, 20, 64, 33], 0)
    shared, *rests = random
    prompts = [shared, *(shared + rest for rest in rests), shared, shared[:64], shared[:32] + rests[2]]
    counts = [9] * len(prompts)
    outputs, scheduler = generate(info, prompts, counts, budget=budget, together=together, block_size=8)
    assert scheduler.blocks.num_hit_tokens >= 4 * 64
    assert_all_greedy(reference, prompts, outputs, counts)
