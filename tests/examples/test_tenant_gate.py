from hypothesis import given, settings
from hypothesis import strategies as st

from examples.tenant_gate import TenantGate
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import expected_output

PROMPT = [5, 6, 7, 8]


def engine_with_gate(limit: int, **options: int) -> CoreHarness:
    gate = TenantGate(limit)
    engine = CoreHarness(gates=[gate], **options)  # type: ignore[arg-type]
    gate.wake = engine.scheduler.wake
    return engine


def running(engine: CoreHarness) -> list[str]:
    return [request.request_id for request in engine.scheduler.running]


def test_a_request_beyond_the_limit_is_overtaken() -> None:
    engine = engine_with_gate(limit=1)
    engine.add(add_request("a1", PROMPT, 2, cache_salt="a"))
    engine.add(add_request("a2", PROMPT, 2, cache_salt="a"))
    engine.add(add_request("b1", PROMPT, 5, cache_salt="b"))
    engine.step()
    assert (running(engine), list(engine.scheduler.blocked)) == (["a1", "b1"], ["a2"])
    engine.step()  # a1 ends
    engine.step()
    assert (sorted(running(engine)), list(engine.scheduler.blocked)) == (["a2", "b1"], [])
    engine.run()
    assert engine.answers["a2"].token_ids == expected_output(PROMPT, 2)


def test_an_abort_lets_the_next_one_in() -> None:
    engine = engine_with_gate(limit=1)
    for name in ("a1", "a2", "a3"):
        engine.add(add_request(name, PROMPT, 4, cache_salt="a"))
    engine.step()
    engine.core.abort(FRONTEND, ["a2", "a1"])  # one that is blocked, and the one with the row
    engine.step()
    assert running(engine) == ["a3"]
    engine.run()


@settings(max_examples=50, deadline=None)
@given(
    limit=st.integers(1, 3),
    num_blocks=st.integers(12, 60),
    tenants=st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=12),
)
def test_no_tenant_exceeds_the_limit_and_every_request_ends(
    limit: int, num_blocks: int, tenants: list[str]
) -> None:
    """Few blocks preempt requests: these leave the gate and are asked about again."""
    engine = engine_with_gate(limit, num_blocks=num_blocks, block_size=1)
    salts = {f"{number}": tenant for number, tenant in enumerate(tenants)}
    for name, salt in salts.items():
        engine.add(add_request(name, PROMPT, 6, cache_salt=salt))
    while engine.core.has_work:
        engine.step()
        of_tenants = [salts[name] for name in running(engine)]
        assert all(of_tenants.count(tenant) <= limit for tenant in of_tenants)
    engine.run()
    assert all(answer.token_ids == expected_output(PROMPT, 6) for answer in engine.answers.values())
