from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config

from kvasir.config.hardware import device_facts
from kvasir.config.options import ConfigError
from kvasir.config.settings import DeviceConfig
from kvasir.config.speculation import Speculation
from kvasir.hub.model_info import load_model_info
from kvasir.layers.attention import HeadShape
from kvasir.layers.kv import FullAttention, KVGroup, block_bytes
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.sampling.logit_rules import LogitRules
from kvasir.sampling.penalties import Ints, Tokens
from kvasir.worker import device
from kvasir.worker import worker as worker_module
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.kv_memory import cache_memory as memory
from kvasir.worker.kv_memory.cache_memory import block_shape, check_fits_memory, usable_blocks
from kvasir.worker.model_runner import ModelRunner
from kvasir.worker.step import NewRow, ScheduledRow, StepInput, StepOutput
from kvasir.worker.worker import Worker
from runtime.models.tiny import LONG_ROPE, decoder, gpt2, llama, save
from runtime.worker.driver import NAN, Driver, engine_settings, greedy

BLOCK = block_shape(HeadShape(4, 2, 16), 8, torch.bfloat16)
GROUPS = [KVGroup(FullAttention(BLOCK), (0, 1, 2))]
BLOCK_BYTES = block_bytes(GROUPS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(llama(), tmp_path_factory.mktemp("llama"))


def test_longrope_follows_the_context_that_the_cache_can_hold(tmp_path: Path) -> None:
    """A cache that holds no more than the original context is computed with the short factors."""
    original = 64
    model = decoder(Phi3Config, original_max_position_embeddings=original, rope_parameters=LONG_ROPE)
    path = save(model, tmp_path)

    def tokens(**changes: Any) -> list[int]:
        driver = Driver.load(path, **changes)
        driver.add("a", range(5, 35), greedy(20))
        return driver.run()["a"]

    short, long = tokens(max_model_len=original), tokens(max_model_len=original + 1)
    assert short != long
    assert tokens(max_model_len=200, num_blocks=original // 8 - 1) == short
    assert tokens(max_model_len=200, num_blocks=original // 8) == long


def test_steps_free_rows_before_they_take_them(path: Path) -> None:
    """With one row only, and an id that is reused in the step that ends it."""
    worker = Driver.load(path, max_num_seqs=1).worker
    first = worker.execute(
        StepInput([], [NewRow("a", packed([5, 6]), 2, greedy(3))], [ScheduledRow("a", 0, 2, [[1]])])
    )
    again = worker.execute(
        StepInput(["a"], [NewRow("a", packed([5, 6]), 2, greedy(3))], [ScheduledRow("a", 0, 2, [[2]])])
    )
    other = worker.execute(
        StepInput(["a"], [NewRow("b", packed([5, 6]), 2, greedy(3))], [ScheduledRow("b", 0, 2, [[1]])])
    )
    assert first == again == other
    with pytest.raises(AssertionError, match="1 rows are taken"):
        worker.check_idle()
    worker.execute(StepInput(["b"], [], []))
    worker.check_idle()


@pytest.mark.parametrize("head_dim", [32, 24])
def test_the_nan_of_one_request_is_told_and_reaches_no_other(head_dim: int, tmp_path: Path) -> None:
    """Neither in its steps nor in the blocks that it leaves behind, by the kernel (32) and in plain torch."""
    model = llama(head_dim=head_dim)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)
        weight[200] = torch.nan
    path = save(model, tmp_path)
    alone = Driver.load(path)
    alone.add("sound", range(5, 10), greedy(20))
    expected = alone.run()["sound"]
    driver = Driver.load(path)
    driver.add("broken", [200] * 20, greedy(20))
    driver.add("sound", range(5, 10), greedy(20))
    assert driver.run() == {"broken": [NAN] * 20, "sound": expected}
    for name in "abcd":  # more blocks than the sound one had
        driver.add(name, range(5, 10), greedy(20))
    assert driver.run() == dict.fromkeys("abcd", expected)


def test_nan_of_the_dummy_token_does_not_stop_the_start(tmp_path: Path) -> None:
    model = llama()
    prompt = range(5, 10)
    sound = Driver.load(save(model, tmp_path / "sound"))
    sound.add("r", prompt, greedy(4))
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)
        weight[0] = torch.nan
    driver = Driver.load(save(model, tmp_path / "nan"))
    driver.add("r", prompt, greedy(4))
    assert driver.run() == sound.run()


PROMPT = list(range(5, 21))
WIDE_SEED = SamplingParams(max_tokens=4, seed=2**64)
"""Fails in the request table."""
RULED = SamplingParams(max_tokens=4, seed=1, logit_bias=((5, 1.0),), logprobs=1)
"""Fails in the sampling inputs, with the rules of `two_failing`."""


@pytest.fixture(scope="module")
def expected(path: Path) -> dict[str, list[int]]:
    driver = Driver.load(path)
    driver.add("a", PROMPT, greedy(4))
    driver.add("b", [9, 8, 7], greedy(4))
    return driver.run()


@pytest.fixture
def two_failing(path: Path, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch) -> Worker:
    def broken(self: LogitRules, tokens: Tokens, vocab_size: int) -> Ints:
        raise ValueError("injected")

    worker = Driver.load(path).worker
    assert isinstance(worker, Worker)
    monkeypatch.setattr(LogitRules, "forbidden", broken)
    new = [NewRow("seed", packed(PROMPT), 16, WIDE_SEED), NewRow("rule", packed(PROMPT), 16, RULED)]
    chunks = [
        ScheduledRow("seed", 0, 8, [[1]]),
        ScheduledRow("rule", 0, 16, [[2, 3]]),
        ScheduledRow("b", 0, 3, [[4]]),
    ]
    output = worker.execute(StepInput([], [*new, NewRow("b", packed([9, 8, 7]), 3, greedy(4))], chunks))
    assert output.token_ids == [[], [], expected["b"][:1]]
    assert output.failed[0].startswith("OverflowError: ")  # at its first chunk, before a token is due
    assert output.failed[1] == "ValueError: injected"
    assert output.logprobs == {}
    return worker


def test_failures_before_the_forward_pass_end_one_request(
    two_failing: Worker, expected: dict[str, list[int]]
) -> None:
    step = StepInput(["seed", "rule"], [NewRow("a", packed(PROMPT), 16, greedy(4))], [ScheduledRow("b", 3, 1, [])])
    assert two_failing.execute(step).token_ids == [expected["b"][1:2]]
    output = two_failing.execute(
        StepInput([], [], [ScheduledRow("b", 4, 1, []), ScheduledRow("a", 0, 16, [[1, 5]])])
    )
    assert output.token_ids == [expected["b"][2:3], expected["a"][:1]]
    assert output.failed == {}
    two_failing.execute(StepInput(["a", "b"], [], []))
    two_failing.check_idle()


def test_failed_rows_go_on_until_they_are_freed(two_failing: Worker, expected: dict[str, list[int]]) -> None:
    """Overlapped steps are scheduled before a failure is known, and others may share the blocks of a failed row."""
    chunks = [
        ScheduledRow("seed", 8, 8, [[5]]),
        ScheduledRow("rule", 16, 1, [[6]]),
        ScheduledRow("a", 8, 8, [[2, 7]]),
    ]
    output = two_failing.execute(StepInput([], [NewRow("a", packed(PROMPT), 16, greedy(4))], chunks))
    assert output.token_ids == [[], [], expected["a"][:1]]


def test_a_failure_of_no_single_request_is_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Driver.load(path).worker
    monkeypatch.setattr(InputBuilder, "build", lambda self, scheduled, is_awaited: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.execute(StepInput([], [NewRow("a", packed([5, 6]), 2, greedy(3))], [ScheduledRow("a", 0, 2, [[1]])]))


def test_a_request_may_fill_the_whole_context(path: Path) -> None:
    driver = Driver.load(path, max_model_len=24)
    driver.add("r", range(2, 22), greedy(4))
    driver.add("full", range(2, 25), greedy(1))
    assert [len(tokens) for tokens in driver.run().values()] == [1, 4]


def test_gpt2_at_the_last_of_its_positions(tmp_path: Path) -> None:
    driver = Driver.load(save(gpt2(n_positions=16), tmp_path), max_model_len=16)
    driver.add("r", range(2, 14), greedy(4))
    assert len(driver.run()["r"]) == 4


@pytest.mark.parametrize("max_model_len", [1, 2, 3])
def test_a_tiny_context_warms_up(path: Path, max_model_len: int) -> None:
    Driver.load(path, max_model_len=max_model_len, max_num_batched_tokens=1, max_num_seqs=1)


def test_the_number_of_threads_is_the_settings(path: Path) -> None:
    before = torch.get_num_threads()
    try:
        Worker(engine_settings(threads=2), load_model_info(path))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_blocks_fill_the_memory_given_the_null_block_included(path: Path) -> None:
    assert BLOCK_BYTES == 3 * 2 * 8 * 2 * 16 * 2
    assert usable_blocks(engine_settings(), 100 * BLOCK_BYTES, GROUPS) == 99
    worker = Worker(engine_settings(kv_cache_memory_bytes=10 * 3 * 2 * 8 * 32 * 4), load_model_info(path))
    worker.load(lambda done, total: None)
    assert worker.kv_layout().num_blocks == 9


def test_memory_is_profiled_with_a_chunk_at_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with as many requests, drafts and tokens as a step can have."""
    largest: list[list[ScheduledRow]] = []
    execute = ModelRunner.execute

    def recorded(self: ModelRunner, step: StepInput) -> StepOutput:
        largest.append(step.scheduled)
        return execute(self, step)

    def profile(utilization: float, largest_step: Callable[[], None], capture: Callable[[], int]) -> int:
        largest_step()
        assert capture() == 0  # a CPU has no graphs
        return 2**24

    monkeypatch.setattr(ModelRunner, "execute", recorded)
    monkeypatch.setattr(worker_module, "profile_gpu", profile)
    for drafted_rows, drafted in ((0, []), (99, [[(0, 1)], [(1, 64)]])):
        largest.clear()
        settings = engine_settings(
            kv_cache_memory_bytes=None,
            max_model_len=200,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            speculation=Speculation("ngram", 5, drafted_rows, 5, 5) if drafted_rows else None,
        )
        worker = Worker(settings, load_model_info(path))
        worker.load(lambda done, total: None)
        worker.kv_layout()
        worker.check_idle()
        parts = [[(row.num_computed_tokens, row.num_new_tokens) for row in rows] for rows in largest if rows]
        assert parts == [[(0, 16)] * 4, *drafted, [(136, 64)]]


def test_a_number_of_blocks_goes_before_the_memory() -> None:
    assert usable_blocks(engine_settings(num_blocks=12), 0, GROUPS) == 12


def test_memory_for_no_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        usable_blocks(engine_settings(), BLOCK_BYTES, GROUPS)
    with pytest.raises(ConfigError, match=r"0\.0 MiB are left"):
        usable_blocks(engine_settings(), -5, GROUPS)


def test_a_cache_that_the_container_has_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: 4 * 2**30)
    monkeypatch.setattr(memory, "resident_memory", lambda: 3 * 2**30)
    check_fits_memory(2**30, ranks=1)
    with pytest.raises(ConfigError, match=r"1\.25 GiB, 3\.00 GiB are used .* 4\.00 GiB: raise its memory limit"):
        check_fits_memory(5 * 2**28, ranks=1)


def test_the_caches_of_all_ranks_of_a_container_fit_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: 8 * 2**30)
    monkeypatch.setattr(memory, "resident_memory", lambda: 2**30)
    check_fits_memory(3 * 2**30, ranks=2)
    with pytest.raises(ConfigError, match=r"3\.00 GiB, .* 8\.00 GiB, shared by 3 ranks: raise its memory limit"):
        check_fits_memory(3 * 2**30, ranks=3)


def test_cuda_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--device cuda.*--device cpu"):
        device.device_facts(DeviceConfig(device="cuda"))
    assert device.device_facts(DeviceConfig()).kind == "cpu"


GPU = """
from types import SimpleNamespace
properties = SimpleNamespace(name="GPU 9", total_memory=2**36, major=9, minor=0)
version = SimpleNamespace(hip=None)
cuda = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    get_device_properties=lambda index: properties,
)
"""


@pytest.mark.parametrize("torch_code", [GPU, "raise ImportError('broken')", None])
def test_a_child_searches_for_a_gpu_of_workers(
    torch_code: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a driver there is no child, so this machine's is replaced."""
    monkeypatch.setattr(device, "GPU_DRIVERS", (tmp_path / "driver",))
    if torch_code is not None:
        (tmp_path / "driver").touch()
        (tmp_path / "torch.py").write_text(torch_code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    if torch_code is None:
        assert device.device_facts_of_workers(DeviceConfig()).kind == "cpu"
        with pytest.raises(ConfigError, match=r"--device cuda.*--device cpu"):
            device.device_facts_of_workers(DeviceConfig("cuda"))
    elif torch_code == GPU:
        facts = device.device_facts_of_workers(DeviceConfig())
        assert (facts.kind, facts.name, facts.memory_limit, facts.fast_bfloat16) == ("cuda", "GPU 9", 2**36, True)
    else:
        with pytest.raises(RuntimeError, match="exit code 1: see its output above, or choose --device cpu"):
            device.device_facts_of_workers(DeviceConfig())
    assert device.device_facts_of_workers(DeviceConfig("cpu")).kind == "cpu"


@pytest.mark.parametrize(("flag", "fast"), [("avx512_bf16", True), ("amx_bf16", True), ("avx512f", False)])
def test_bfloat16_is_fast_where_the_cpu_multiplies_it(
    flag: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_facts, "cpu_flags", lambda: frozenset({"fma", flag}))
    facts = device.device_facts(DeviceConfig(device="cpu"))
    assert facts.fast_bfloat16 == fast
    assert facts.cores >= 1
    assert facts.memory_limit > 0
