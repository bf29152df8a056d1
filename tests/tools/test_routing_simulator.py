import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from bench.routing.engines import Size, Speed
from bench.routing.policies import BoundedHash, Kvasir, LeastLoad, Oracle, Policy, RoundRobin
from bench.routing.simulation import Results, Simulation
from bench.routing.traces import BLOCK_SIZE, Session, adapters, bursts, conversations, hot, recorded

SIZE = Size(rows=16, blocks=1500)


def run(policy: type[Policy], sessions: Iterable[Session], *, frontends: int = 1, slow: float = 1.0) -> Results:
    speeds = [Speed(factor=slow), Speed(), Speed()]
    return Simulation(policy, list(sessions), speeds, SIZE, frontends).run()


@pytest.mark.parametrize("frontends", [1, 2])
def test_conversations_stay_with_their_caches(frontends: int) -> None:
    def sessions() -> list[Session]:
        return list(conversations(random.Random(1), sessions=40, turns=5))

    ours, hashed = run(Kvasir, sessions(), frontends=frontends), run(BoundedHash, sessions())
    oracle, unaware = run(Oracle, sessions()), run(RoundRobin, sessions())
    assert len(ours.first_tokens) == 200
    assert ours.hit_rate > 0.95 * oracle.hit_rate
    assert ours.hit_rate > 1.3 * unaware.hit_rate
    assert ours.first_token(0.5) < hashed.first_token(0.5)
    assert ours.first_token(0.99) < hashed.first_token(0.99)


def test_a_hot_prefix_is_served_by_all_engines() -> None:
    results = run(Kvasir, hot(random.Random(1), requests=200))
    assert results.imbalance < 1.2
    assert results.hit_rate > 0.9


def test_a_slow_engine_gets_less_work() -> None:
    sessions = list(conversations(random.Random(1), sessions=40, turns=5))
    ours, unaware = run(Kvasir, sessions, slow=4.0), run(RoundRobin, sessions, slow=4.0)
    assert ours.first_token(0.99) < 0.5 * unaware.first_token(0.99)


def test_a_burst_uses_more_than_one_engine() -> None:
    results = run(Kvasir, bursts(random.Random(1), bursts=3))
    assert results.imbalance < 1.5


def test_adapters_stay_where_they_are_without_imbalance() -> None:
    sessions = list(adapters(random.Random(1), requests=400, adapters=16))
    ours, least = run(Kvasir, sessions), run(LeastLoad, sessions)
    assert sum(ours.adapter_reads) < 0.5 * sum(least.adapter_reads)
    assert ours.first_token(0.9) < least.first_token(0.9)
    assert ours.imbalance < 1.2


def test_a_recorded_trace_is_read(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1000 * number, "input_length": 700, "output_length": 4, "hash_ids": [5, 6]}
        for number in range(4)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    sessions = list(recorded(path, requests=3, speed=2.0))
    assert [session[0].pause for session in sessions] == [0.0, 0.5, 1.0]
    results = run(Kvasir, sessions)
    assert results.prompt_tokens == 2100
    assert results.cached_tokens == 2 * (699 // BLOCK_SIZE * BLOCK_SIZE)
