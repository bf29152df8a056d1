"""The frontend's end against engines that misbehave: none of them harms the others or the link."""

import asyncio
import os
import random
from functools import partial

import pytest

from kvasir.link.codec import encode
from kvasir.link.frontend_end.events import EngineLost
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Dead,
    Goodbye,
    Heartbeat,
    Refused,
    Welcome,
)
from kvasir.link.sockets import QUEUE_MESSAGES, step_age_limit
from kvasir_contract.phases import Phase
from runtime.link.peers import PATIENCE, READY, STATS, BareEngine, engine, frontend, hello, outputs, serve_one


@pytest.fixture
async def f(sockets):
    async with frontend(f"ipc://{sockets}/link") as f:
        yield f


@pytest.fixture
async def bare(f):
    """Makes bare engines of the frontend `f`."""
    engines = []

    def make(incarnation, **options):
        engines.append(BareEngine(f.link.addresses, incarnation, **options))
        return engines[-1]

    yield make
    for each in engines:
        each.close()


async def expect(engine, kind):
    return await asyncio.to_thread(engine.expect, kind)


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
async def test_an_engine_that_does_not_fit_is_refused_with_both_values(f, bare, caplog, field, value, words):
    stranger = bare("stranger")
    stranger.say(hello("stranger", **{field: value}))
    refused = await expect(stranger, Refused)
    assert not refused.retry
    assert all(word in refused.reason for word in words), refused.reason
    assert not f.link.engines
    assert not f.seen.changes
    assert any("LinkRefused" in line and refused.reason in line for line in caplog.messages)


async def test_an_engine_that_is_one_protocol_newer_is_accepted(f, bare):
    newer = bare("newer")
    newer.say(hello("newer", protocol=PROTOCOL_VERSION + 1))
    assert (await expect(newer, Welcome)).protocol == PROTOCOL_VERSION


async def test_an_engine_cannot_speak_for_another(f, bare):
    honest, liar = bare("honest"), bare("liar")
    honest.introduce()
    await f.ready("honest")
    liar.say(hello("honest"))
    assert not (await expect(liar, Refused)).retry
    assert list(f.link.engines) == ["honest"]
    assert not f.seen.lost


# ------------------------------------------------------------------------------- strangers and those who return


async def test_who_was_never_introduced_is_asked_to_say_hello(f, bare):
    stranger = bare("stranger")
    stranger.say(outputs())
    assert (await expect(stranger, Refused)).retry
    assert not f.seen.outputs
    stranger.introduce()
    await f.ready("stranger")


async def test_a_lost_engine_is_not_heard_until_it_says_hello_again(f, bare):
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


async def test_a_hello_after_ready_starts_over(f, bare):
    """The engine took this frontend for lost and dropped its requests: nobody would ever answer them."""
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


async def test_a_hello_that_repeats_before_ready_is_answered_and_changes_nothing(f, bare):
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
async def test_an_engine_is_usable_after_its_ready_unless_it_drains(f, bare, phase, before, after):
    engine = bare("engine")
    engine.say(hello("engine", phase_name=phase))
    await f.seen.until(lambda: f.seen.changes)
    assert f.link.engines["engine"].state is before
    assert not f.link.engines["engine"].usable
    engine.say(READY)
    await f.seen.until(lambda: f.link.engines["engine"].capacity == READY)
    assert f.link.engines["engine"].state is after
    assert f.link.engines["engine"].usable is (after is EngineState.READY)


async def test_outputs_sent_before_a_connection_broke_come_before_the_loss(f, bare):
    victim = bare("victim")
    victim.introduce()
    await f.ready("victim")
    seen_at_loss = []
    handle = f.seen.handle

    def watched(event):
        if isinstance(event, EngineLost):
            seen_at_loss.append(len(f.seen.outputs))
        handle(event)

    f.seen.handle = watched
    victim.say(*(outputs(position=i) for i in range(1000)))
    await asyncio.to_thread(victim.close)
    await f.lost("victim")
    assert seen_at_loss == [1000]


# ------------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Dead("out of memory"), "out of memory"),
        (Goodbye(), "shut down"),
        (Heartbeat(STATS, step_age=step_age_limit(10.0) + 1), "step has not ended"),
        (b"\xc1 rubbish", "not a message"),
        (encode(Welcome(1, "f")), "not a message"),
        (b"", "not a message"),
    ],
)
async def test_an_engine_is_lost_once_and_the_others_go_on(f, bare, message, reason):
    with engine(f.link.addresses) as other:
        victim = bare("victim")
        victim.introduce()
        await f.ready("victim", other.incarnation)
        victim.say(message, message)
        assert reason in await f.lost("victim")
        await asyncio.gather(f.ask(other.incarnation), serve_one(other))
        assert [i for i, _ in f.seen.lost] == ["victim"]
        victim.introduce()
        await f.ready("victim")


async def test_a_message_of_several_frames_is_rubbish(f, bare):
    victim = bare("victim")
    victim.introduce()
    await f.ready("victim")
    victim.socket.send_multipart([encode(outputs()), b"more"])
    assert "2 frames" in await f.lost("victim")


async def test_rubbish_without_end_is_logged_once(f, bare, caplog):
    noise = random.Random(0)
    vandal, marker = bare("vandal"), bare("marker")
    for _ in range(300):
        vandal.say(noise.randbytes(noise.randrange(60)))
    vandal.say(*[b"\xc1"] * 300, hello("vandal"))  # in order: the Welcome comes when all of it was handled
    await expect(vandal, Welcome)
    marker.introduce()
    await f.ready("marker")
    assert sum(record.exc_info is not None for record in caplog.records) == 0
    assert len([line for line in caplog.messages if "vandal sent" in line]) == 1


async def test_an_engine_that_stops_reading_is_lost_with_little_in_its_queue(f, bare):
    with engine(f.link.addresses) as other:
        deaf = bare("deaf", rcvhwm=1)
        deaf.introduce()
        await f.ready("deaf", other.incarnation)
        message = Abort(["x" * 10_000])
        sent = 0
        while f.link.send("deaf", message):
            sent += 1
            assert sent < 2 * QUEUE_MESSAGES, "the queue has no bound"
        assert "full" in await f.lost("deaf")
        assert len(f.seen.lost) == 1
        await asyncio.gather(f.ask(other.incarnation), serve_one(other))


async def test_an_engine_is_not_lost_by_as_many_messages_at_once_as_were_announced(sockets):
    burst = 4 * QUEUE_MESSAGES
    async with frontend(f"ipc://{sockets}/link", burst=burst) as f:
        slow = BareEngine(f.link.addresses, "slow", rcvhwm=1)
        slow.introduce()
        await f.ready("slow")
        message = Abort(["x" * 10_000])  # large, so that the kernel's buffers hold few
        assert all(f.link.send("slow", message) for _ in range(burst))
        for _ in range(burst):
            await expect(slow, Abort)
        slow.close()


async def test_an_engine_that_falls_silent_is_lost_after_the_timeout(sockets):
    async with frontend(f"ipc://{sockets}/link", silence=0.3) as f:
        mute = BareEngine(f.link.addresses, "mute")
        mute.introduce()
        await f.ready("mute")
        assert "silent" in await f.lost("mute")
        mute.close()


async def test_a_connection_that_says_nothing_is_harmless(f, bare):
    """A port scanner, a probe: accepted, closed, no engine lost, nobody told."""
    with engine(f.link.addresses) as e:
        await f.ready(e.incarnation)
        for _ in range(20):
            _, writer = await asyncio.open_unix_connection(f.link.addresses.removeprefix("ipc://"))
            writer.write(os.urandom(20))
            writer.close()
        await asyncio.gather(f.ask(e.incarnation), serve_one(e))
        assert not f.seen.lost


async def test_a_defect_in_the_owner_does_not_stop_the_link(f, bare, caplog):
    healthy = bare("healthy")
    healthy.introduce()
    await f.ready("healthy")
    f.seen.handle = partial(_raise_once, [], f.seen.handle)
    healthy.say(*(outputs(position=i) for i in range(300)))
    await f.seen.until(lambda: len(f.seen.outputs) == 299)
    assert "was not handled" in caplog.text


def _raise_once(raised, then, *args):
    if not raised:
        raised.append(True)
        raise RuntimeError("a defect")
    then(*args)


async def test_closing_takes_no_longer_than_a_farewell_even_if_an_engine_is_deaf(sockets):
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
