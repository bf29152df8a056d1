import asyncio
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from kvasir.link.codec import encode
from kvasir.link.engine_end.announced_engine import AnnouncedEngine
from kvasir.link.frontend_end.link_events import EngineLost, LinkEvent
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import (
    Abort,
    Dead,
    FailedStep,
    FromEngine,
    Goodbye,
    Heartbeat,
    StepRequest,
    Welcome,
)
from kvasir.wire.heartbeats import step_age_limit
from kvasir.wire.sockets import QUEUE_MESSAGES
from runtime.link.bare_peers import BareEngine, MakeEngine, expect
from runtime.link.peers import STATS, Frontend, engine, frontend, hello, identity, outputs, serve_one

STEP = FailedStep("victim", (StepRequest("r", b"\x01" * 16),))


async def test_outputs_before_a_broken_connection_precede_the_loss(f: Frontend, bare: MakeEngine) -> None:
    victim = bare("victim")
    victim.introduce()
    await f.ready("victim")
    seen_at_loss = []
    handle = f.seen.handle

    def watched(event: LinkEvent) -> None:
        if isinstance(event, EngineLost):
            seen_at_loss.append(len(f.seen.outputs))
        handle(event)

    f.seen.handle = watched
    victim.say(*(outputs(position=i) for i in range(1000)))
    await asyncio.to_thread(victim.close)
    await f.lost("victim")
    assert seen_at_loss == [1000]


@pytest.mark.parametrize(
    ("message", "reason", "ran"),
    [
        (Dead("out of memory", STEP), "out of memory", STEP),
        (Goodbye(), "shut down", None),
        (Heartbeat(STATS, step_age=step_age_limit(10.0) + 1, stuck=STEP), "step has not ended", STEP),
        (Heartbeat(STATS, step_age=31.0, step_limit=30.0, stuck=STEP), "step has not ended for 31 s", STEP),
        (Heartbeat(STATS, step_age=step_age_limit(10.0) + 1, step_limit=1e9, stuck=STEP), "has not ended", STEP),
        (b"\xc1 rubbish", "not a message", None),
        (encode(Welcome(1, "f")), "not a message", None),
        (b"", "not a message", None),
    ],
)
async def test_an_engine_is_lost_once_and_the_others_go_on(
    f: Frontend, bare: MakeEngine, message: FromEngine | bytes, reason: str, ran: FailedStep | None
) -> None:
    """`ran`: the step that the loss is blamed on; None: on no step."""
    with engine(f.link.addresses) as other:
        victim = bare("victim")
        victim.introduce()
        await f.ready("victim", other.incarnation)
        victim.say(message, message)
        assert reason in await f.lost("victim")
        assert f.seen.ran["victim"] == (ran or FailedStep("victim"))
        await asyncio.gather(f.ask(other.incarnation), serve_one(other))
        assert [i for i, _ in f.seen.lost] == ["victim"]
        victim.introduce()
        await f.ready("victim")


async def test_engine_that_is_stuck_names_the_requests_of_its_step(sockets: Path) -> None:
    """Its link's thread goes on, so it is neither silent nor disconnected."""
    async with frontend(f"ipc://{sockets}/link", silence=2.0) as f:
        with engine(f.link.addresses, silence=2.0, step_limit=lambda: 0.01, running=lambda: STEP) as stuck:
            await f.ready(stuck.incarnation)
            stuck.set_load(STATS, busy=True)
            assert "step has not ended" in await f.lost(stuck.incarnation)
            assert f.seen.ran[stuck.incarnation] == STEP
            stuck.set_load(msgspec.structs.replace(STATS, step=STATS.step + 1), busy=False)  # the step ends
            await f.ready(stuck.incarnation)


async def test_engine_in_a_long_step_is_not_lost(sockets: Path) -> None:
    """A prefill may take many heartbeat timeouts: the engine sends heartbeats meanwhile."""
    async with frontend(f"ipc://{sockets}/link", silence=2.0) as f:
        with engine(f.link.addresses, silence=2.0, step_limit=lambda: 60.0, running=lambda: STEP) as busy:
            await f.ready(busy.incarnation)
            known = f.link.engines[busy.incarnation]
            busy.set_load(STATS, busy=True)
            await f.seen.until(lambda: known.step_age > 4.0 or known.state is EngineState.LOST)
            assert known.usable


async def test_engine_names_no_step_while_its_steps_are_in_time(sockets: Path) -> None:
    announced = AnnouncedEngine(identity(), 1, 10.0, lambda: 30.0, running=lambda: STEP)
    announced.set_load(STATS, busy=True)
    assert announced.heartbeat().stuck is None


async def test_silent_or_broken_engine_leaves_open_what_it_computed(f: Frontend, bare: MakeEngine) -> None:
    victim = bare("victim")
    victim.introduce()
    await f.ready("victim")
    await asyncio.to_thread(victim.close)
    await f.lost("victim")
    assert f.seen.ran == {"victim": None}


async def test_a_message_of_several_frames_is_rubbish(f: Frontend, bare: MakeEngine) -> None:
    victim = bare("victim")
    victim.introduce()
    await f.ready("victim")
    victim.socket.send_multipart([encode(outputs()), b"more"])
    assert "2 frames" in await f.lost("victim")


async def test_rubbish_without_end_is_logged_once(
    f: Frontend, bare: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_engine_that_stops_reading_is_lost(f: Frontend, bare: MakeEngine) -> None:
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


async def test_announced_burst_does_not_lose_the_engine(sockets: Path) -> None:
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


async def test_an_engine_that_falls_silent_is_lost_after_the_timeout(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link", silence=0.3) as f:
        mute = BareEngine(f.link.addresses, "mute")
        mute.introduce()
        await f.ready("mute")
        assert "silent" in await f.lost("mute")
        mute.close()


async def test_a_connection_that_says_nothing_is_harmless(f: Frontend, bare: MakeEngine) -> None:
    """A port scanner, a probe: accepted, closed, without an event."""
    with engine(f.link.addresses) as e:
        await f.ready(e.incarnation)
        for _ in range(20):
            _, writer = await asyncio.open_unix_connection(f.link.addresses.removeprefix("ipc://"))
            writer.write(os.urandom(20))
            writer.close()
        await asyncio.gather(f.ask(e.incarnation), serve_one(e))
        assert not f.seen.lost


async def test_a_defect_in_the_owner_does_not_stop_the_link(
    f: Frontend, bare: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = bare("healthy")
    healthy.introduce()
    await f.ready("healthy")
    f.seen.handle = partial(_raise_once, [], f.seen.handle)
    healthy.say(*(outputs(position=i) for i in range(300)))
    await f.seen.until(lambda: len(f.seen.outputs) == 299)
    assert "was not handled" in caplog.text


def _raise_once(raised: list[bool], then: Callable[[LinkEvent], None], event: LinkEvent) -> None:
    if not raised:
        raised.append(True)
        raise RuntimeError("a defect")
    then(event)
