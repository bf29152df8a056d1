"""The whole engine, scheduler and worker together, against transformers: token for token in float32.

A divergence passes only where the reference's two best logits lie within 1e-3 of each other.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvasir.config.resolve import ResolvedEngine
from kvasir.engine.block_pool import BlockPool
from kvasir.engine.core import EngineCore
from kvasir.engine.scheduler import Scheduler
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model import ModelInfo, load_model_info
from kvasir.hub.source import fetch
from kvasir.params import SamplingParams
from kvasir.protocol import AddRequest
from runtime.models.tiny import gpt2, llama, save
from runtime.worker.driver import engine_settings

NEAR_TIE = 1e-3
BLOCK_SIZE = 16


@pytest.fixture(scope="module", params=["demo", "llama", "gpt2"])
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
    info: ModelInfo, prompts: list[list[int]], counts: list[int], *, blocks: int = 400, budget: int = 2048
) -> tuple[list[list[int]], int]:
    """The output of each prompt, all sent at once; and how often a request was preempted."""
    settings: ResolvedEngine = engine_settings(
        max_num_batched_tokens=budget, max_num_seqs=min(32, budget), num_blocks=blocks, block_size=BLOCK_SIZE
    )
    executor = InProcessExecutor(settings, info)
    executor.load(lambda done, total: None)
    scheduler = Scheduler(
        BlockPool(executor.allocate_kv_cache()),
        block_size=BLOCK_SIZE,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=min(settings.max_model_len, blocks * BLOCK_SIZE),
        eos_token_ids=info.eos_token_ids,
    )
    core = EngineCore(scheduler, executor, vocab_size=info.vocab_size)
    outputs: dict[str, list[int]] = {}
    for index, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        params = SamplingParams(max_tokens=count, seed=0, temperature=0.0, ignore_eos=True)
        core.add("frontend", AddRequest(str(index), 1, prompt, [], params))
        outputs[str(index)] = []
    while core.has_work:
        for step in core.step().values():
            for output in step.outputs:
                assert output.position == len(outputs[output.request_id])
                outputs[output.request_id] += output.token_ids
    core.check_idle()
    return list(outputs.values()), scheduler.num_preemptions


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


MIXED = [1, 2, 15, 16, 17, 100, 31, 32, *range(3, 27)]


@pytest.mark.parametrize(
    ("lengths", "shortest", "options"),
    [
        pytest.param([37], 24, {}, id="alone"),
        pytest.param(MIXED, 8, {}, id="32 mixed lengths"),
        pytest.param(MIXED, 8, {"budget": 16}, id="chunks of 16 tokens"),
        pytest.param([14, 15, 9, 14, 3, 10, 30, 12], 60, {"blocks": 11}, id="a pool so small that it preempts"),
    ],
)
def test_greedy_output_equals_transformers(
    model: tuple[PreTrainedModel, ModelInfo], lengths: list[int], shortest: int, options: dict[str, int]
) -> None:
    reference, info = model
    prompts, counts = requests(info, lengths, shortest)
    outputs, preemptions = generate(info, prompts, counts, **options)
    assert (preemptions > 0) == ("blocks" in options), f"{preemptions} preemptions"
    for prompt, output, count in zip(prompts, outputs, counts, strict=True):
        assert_greedy(reference, prompt, output, count)
