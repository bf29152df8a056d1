import asyncio
from pathlib import Path

import pytest

from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import PROTOCOL_VERSION, Abort, Refused, Welcome
from kvasir_contract.phases import Phase
from runtime.link.bare_peers import BareEngine, MakeEngine, expect
from runtime.link.peers import PATIENCE, READY, Frontend, frontend, hello, outputs

# ------------------------------------------------------------------------------------------------------ refusal


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("fingerprint", "other", ("fingerprint", "'other'", "'model'")),
        ("tokenizer_hash", "other", ("tokenizer", "'other'", "'tokenizer'")),
        ("service", "other", ("service", "'other'", "'uid'")),
        ("protocol", PROTOCOL_VERSION + 2, ("protocol", str(PROTOCOL_VERSION + 2))),
        ("protocol", 0, ("protocol 0",)),
    ],
)
async def test_an_engine_that_does_not_fit_is_refused_with_both_values(
    f: Frontend,
    bare: MakeEngine,
    caplog: pytest.LogCaptureFixture,
    field: str,
    value: str | int,
    words: tuple[str, ...],
) -> None:
    stranger = bare("stranger")
    stranger.say(hello("stranger", **{field: value}))
    refused = await expect(stranger, Refused)
    assert not refused.retry
    assert all(word in refused.reason for word in words), refused.reason
    assert not f.link.engines
    assert not f.seen.changes
    assert any("LinkRefused" in line and refused.reason in line for line in caplog.messages)


async def test_an_engine_that_is_one_protocol_newer_is_accepted(f: Frontend, bare: MakeEngine) -> None:
    newer = bare("newer")
    newer.say(hello("newer", protocol=PROTOCOL_VERSION + 1))
    assert (await expect(newer, Welcome)).protocol == PROTOCOL_VERSION


async def test_an_engine_cannot_speak_for_another(f: Frontend, bare: MakeEngine) -> None:
    honest, liar = bare("honest"), bare("liar")
    honest.introduce()
    await f.ready("honest")
    liar.say(hello("honest"))
    assert not (await expect(liar, Refused)).retry
    assert list(f.link.engines) == ["honest"]
    assert not f.seen.lost


# ------------------------------------------------------------------------------- unknown and returning engines


async def test_who_was_never_introduced_is_asked_to_say_hello(f: Frontend, bare: MakeEngine) -> None:
    stranger = bare("stranger")
    stranger.say(outputs())
    assert (await expect(stranger, Refused)).retry
    assert not f.seen.outputs
    stranger.introduce()
    await f.ready("stranger")


async def test_a_lost_engine_is_not_heard_until_it_says_hello_again(f: Frontend, bare: MakeEngine) -> None:
    first = bare("again")
    first.introduce()
    await f.ready("again")
    first.close()
    await f.lost("again")
    second = bare("again")
    second.say(outputs())
    assert (await expect(second, Refused)).retry
    assert not f.seen.outputs
    assert not f.link.send("again", Abort(["r"]))
    second.introduce()
    await f.ready("again")
    assert len(f.seen.lost) == 1


async def test_a_hello_after_ready_starts_over(f: Frontend, bare: MakeEngine) -> None:
    """The engine took this frontend for lost and dropped its requests: they would never be answered."""
    first = bare("again")
    first.introduce()
    await f.ready("again")
    second = bare("again")  # takes the name over while the first connection is still alive
    second.say(hello("again"))
    await f.lost("again")
    assert not f.link.engines["again"].usable
    second.introduce()
    await f.ready("again")
    second.say(outputs())
    await f.seen.until(lambda: f.seen.outputs)
    assert len(f.seen.lost) == 1


async def test_repeated_hello_before_ready_is_only_answered(f: Frontend, bare: MakeEngine) -> None:
    eager = bare("eager")
    eager.say(hello("eager"), hello("eager"), hello("eager"))
    for _ in range(3):
        assert (await expect(eager, Welcome)).frontend == f.link.incarnation
    assert f.seen.changes == [("eager", EngineState.STARTING)]


@pytest.mark.parametrize(
    ("phase", "before", "after"),
    [
        (Phase.STARTING, EngineState.STARTING, EngineState.READY),
        (Phase.LOADING, EngineState.LOADING, EngineState.READY),
        (Phase.WARMING, EngineState.WARMING, EngineState.READY),
        (Phase.READY, EngineState.WARMING, EngineState.READY),
        (Phase.DRAINING, EngineState.DRAINING, EngineState.DRAINING),
    ],
)
async def test_an_engine_is_usable_after_its_ready_unless_it_drains(
    f: Frontend, bare: MakeEngine, phase: Phase, before: EngineState, after: EngineState
) -> None:
    engine = bare("engine")
    engine.say(hello("engine", phase_name=phase))
    await f.seen.until(lambda: f.seen.changes)
    assert f.link.engines["engine"].state is before
    assert not f.link.engines["engine"].usable
    engine.say(READY)
    await f.seen.until(lambda: f.link.engines["engine"].capacity == READY)
    assert f.link.engines["engine"].state is after
    assert f.link.engines["engine"].usable is (after is EngineState.READY)


async def test_close_waits_for_the_linger_at_most(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link") as f:
        deaf = BareEngine(f.link.addresses, "deaf", rcvhwm=1)
        deaf.introduce()
        await f.ready("deaf")
        for _ in range(500):
            assert f.link.send("deaf", Abort(["x" * 10_000]))
        began = asyncio.get_running_loop().time()
        await f.link.close()
        assert asyncio.get_running_loop().time() - began < PATIENCE / 5
        deaf.close()
