"""The gate that keeps KV blocks for the growth of running requests: its verdicts, and their cost."""

import pytest

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.admission_gates import RESERVE, BlockGate
from runtime.engine.core_harness import CoreHarness, add_request


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the requests whose growth is computed, in order."""
    ids: list[str] = []
    growth = BlockGate._growth

    def counting(gate: BlockGate, request: EngineRequest) -> int:
        ids.append(request.request_id)
        return growth(gate, request)

    monkeypatch.setattr(BlockGate, "_growth", counting)
    return ids


@pytest.mark.parametrize("num_blocks", [4096, 1200, 700], ids=["all fit", "most fit", "few fit"])
@pytest.mark.parametrize("windows", [(None,), (None, 8)], ids=["plain", "windows"])
def test_block_gate_cost_of_a_burst_is_linear(
    counted: list[str], num_blocks: int, windows: tuple[int | None, ...]
) -> None:
    burst = 256
    core = CoreHarness(num_blocks=num_blocks, max_num_seqs=burst, budget=8192, windows=windows)
    for i in range(burst):
        core.add(add_request(f"r{i}", [5 + i % 64, 6 + i // 64, 7], max_tokens=8 + i % 8))
    core.step()
    assert len(core.scheduler.running) > burst // 4
    assert len(counted) <= 4 * burst


def exact_room(blocks: KVManager, running: list[EngineRequest], request: EngineRequest) -> bool:
    """Compute the rule of the gate from all running requests."""

    def growth(of: EngineRequest) -> int:
        left = of.params.max_tokens - of.num_output_tokens - 1
        return blocks.growth(of, min(-(-left // blocks.block_size), RESERVE))

    wanted = blocks.cost_of(request) + (sum(map(growth, [*running, request])) if running else 0)
    return blocks.pool.can_allocate(wanted)


@pytest.mark.parametrize("windows", [(None,), (None, 8)], ids=["plain", "windows"])
def test_block_gate_admits_as_if_it_asked_all(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[int | None, ...]
) -> None:
    verdicts: set[bool] = set()
    has_room = BlockGate._has_room_for

    def compared(gate: BlockGate, request: EngineRequest) -> bool:
        exact = exact_room(core.blocks, list(core.scheduler.running), request)
        assert has_room(gate, request) is exact
        verdicts.add(exact)
        return exact

    monkeypatch.setattr(BlockGate, "_has_room_for", compared)
    core = CoreHarness(num_blocks=40, max_num_seqs=16, windows=windows)
    for i in range(60):
        core.add(add_request(f"r{i}", [5 + i % 7] * (1 + i % 13), max_tokens=1 + i * 7 % 61))
        if i % 3 == 0:
            core.step()
        if i % 10 == 9:
            core.core.abort("frontend-a", [f"r{i - 5}"])
    core.run()
    assert verdicts == {True, False}
    assert core.scheduler.num_preemptions > 0
