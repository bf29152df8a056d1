import asyncio
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from kvasir.link.engine_end.engine_link import DrainSettled, Received
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import Abort, AdaptersHeld, CacheEvents, Dead, Goodbye, Progress
from kvasir.request.adapter import Adapter
from kvasir.wire.address import parse_address
from kvasir_contract.phases import Phase
from runtime.link.peers import (
    PATIENCE,
    READY,
    STATS,
    Frontend,
    Transport,
    engine,
    engine_process,
    forwarder,
    frontend,
    frontend_lost,
    outputs,
    received,
    request,
    serve_one,
)
from runtime.link.queued_link import QueuedLink


async def test_every_frontend_has_all_engines_and_its_own_answers(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    second = address + "2" if address.startswith("ipc") else address
    async with frontend(address, frontend_keys) as f1, frontend(second, frontend_keys) as f2:
        addresses = (f1.link.addresses, f2.link.addresses)
        with engine(*addresses, keys=engine_keys) as e1, engine(*addresses, keys=engine_keys) as e2:
            for f in (f1, f2):
                await f.ready(e1.incarnation, e2.incarnation)
                assert f.link.engines[e1.incarnation].capacity == READY
            assert (len(e1.accepted), len(e2.accepted)) == (2, 2)
            for f in (f1, f2):
                for e in (e1, e2):
                    name = f"{f.link.incarnation} to {e.incarnation}"
                    _, served = await asyncio.gather(f.ask(e.incarnation, name), serve_one(e))
                    assert served.frontend == f.link.incarnation
        assert {i for i, _ in f1.seen.outputs} == {e1.incarnation, e2.incarnation}
        assert all(o.outputs[0].request_id.startswith(f1.link.incarnation) for _, o in f1.seen.outputs)


async def test_frontend_asks_for_cache_events_in_each_welcome(sockets: Path) -> None:
    address = f"ipc://{sockets}/link"
    async with frontend(address) as f:
        with engine(address) as e:
            for _ in range(2):
                await f.ready(e.incarnation)
                wish = await asyncio.to_thread(e.wishes.get, timeout=PATIENCE)
                assert wish.frontend == f.link.incarnation
                e.send(wish.frontend, CacheEvents(0, bytes(16)))
                await f.seen.until(lambda: f.seen.cache)
                assert f.seen.cache == [(e.incarnation, CacheEvents(0, bytes(16)))]
                f.seen.cache.clear()
                f.link.lose(e.incarnation, "for the test")
                await asyncio.to_thread(frontend_lost, e)


async def test_frontends_know_the_adapters_of_an_engine(sockets: Path) -> None:
    held = [Adapter(name, f"/{name}", name) for name in "abc"]
    addresses = [f"ipc://{sockets}/{name}" for name in ("first", "second")]
    async with frontend(addresses[0]) as first:
        with engine(*addresses) as link:
            await first.ready(link.incarnation)
            assert not first.link.engines[link.incarnation].adapters
            for known in ({*"ab"}, {*"abc"}):
                link.show_adapters(AdaptersHeld(tuple(held[: len(known)])))
                await first.seen.until(partial(_knows, first, link, known))
            async with frontend(addresses[1]) as second:
                await second.ready(link.incarnation)
                await second.seen.until(partial(_knows, second, link, {*"abc"}))


def _knows(f: Frontend, link: QueuedLink, digests: set[str]) -> bool:
    return f.link.engines[link.incarnation].adapters == digests


async def test_an_engine_that_starts_before_its_frontend_is_found(sockets: Path) -> None:
    address = f"ipc://{sockets}/link"
    with engine(address) as e:
        async with frontend(address) as f:
            await f.ready(e.incarnation)


async def test_phases_and_progress_are_seen_before_the_engine_is_ready(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link", silence=2) as f:
        with engine(f.link.addresses, ready=False, silence=2) as e:
            await f.seen.until(lambda: f.seen.changes == [(e.incarnation, EngineState.STARTING)])
            e.set_phase(Phase.LOADING, Progress(1, 10))
            await f.seen.until(lambda: f.seen.changes[-1] == (e.incarnation, EngineState.LOADING))
            e.set_phase(Phase.LOADING, Progress(9, 10))
            await f.seen.until(lambda: f.link.engines[e.incarnation].progress == Progress(9, 10))
            assert not f.link.engines[e.incarnation].usable
            e.announce_ready(READY)
            await f.ready(e.incarnation)
            assert f.link.engines[e.incarnation].progress is None


async def test_the_load_of_an_idle_engine_comes_with_its_heartbeat(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link", silence=2) as f:
        with engine(f.link.addresses, silence=2) as e:
            e.set_load(STATS, busy=False)
            await f.ready(e.incarnation)
            await f.seen.until(lambda: f.link.engines[e.incarnation].stats == STATS)
            assert f.link.engines[e.incarnation].step_age == 0


async def test_one_frontend_at_a_time_shows_the_load_of_an_engine(sockets: Path) -> None:
    """Sums over all frontends must count the engine once."""
    second = f"ipc://{sockets}/second"
    async with frontend(f"ipc://{sockets}/first", silence=2) as f1:
        with engine(f1.link.addresses, second, silence=2) as e:
            e.set_load(STATS, busy=False)
            await f1.ready(e.incarnation)
            await f1.seen.until(lambda: f1.link.engines[e.incarnation].shows_load)
            async with frontend(second, silence=2) as f2:
                await f2.ready(e.incarnation)
                await f2.seen.until(lambda: f2.link.engines[e.incarnation].stats == STATS)
                assert f1.link.engines[e.incarnation].shows_load
                assert not f2.link.engines[e.incarnation].shows_load
                await f1.link.close()
                await f2.seen.until(lambda: f2.link.engines[e.incarnation].shows_load)


async def test_draining_engine_gets_only_requests_already_sent(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link") as f:
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)
            e.drain()
            assert f.link.send(e.incarnation, Abort(["sent before the word arrived"]))
            await f.seen.until(lambda: f.link.engines[e.incarnation].state is EngineState.DRAINING)
            assert not f.link.engines[e.incarnation].usable
            message = (await asyncio.to_thread(received, e)).message
            assert isinstance(message, Abort)
            assert message.request_ids
            assert not f.seen.lost


async def test_draining_engine_learns_that_every_frontend_has_noticed(sockets: Path) -> None:
    def until_settled(e: QueuedLink) -> list[object]:
        messages: list[object] = []
        while not isinstance(item := e.inbox.get(timeout=PATIENCE), DrainSettled):
            messages.append(item.message if isinstance(item, Received) else item)
        return messages

    async with frontend(f"ipc://{sockets}/a") as a, frontend(f"ipc://{sockets}/b") as b:
        with engine(a.link.addresses, b.link.addresses) as e:
            await a.ready(e.incarnation)
            await b.ready(e.incarnation)
            assert b.link.send(e.incarnation, request("before"))
            e.drain()
            assert await asyncio.to_thread(until_settled, e) == [request("before")]


async def test_draining_engine_without_frontends_is_settled_at_once(sockets: Path) -> None:
    with engine(f"ipc://{sockets}/nobody") as e:
        e.drain()
        assert isinstance(await asyncio.to_thread(e.inbox.get, timeout=PATIENCE), DrainSettled)


async def test_new_frontend_does_not_use_a_draining_engine(sockets: Path) -> None:
    with engine(f"ipc://{sockets}/link") as e:
        e.drain()
        async with frontend(f"ipc://{sockets}/link") as f:
            await f.seen.until(lambda: e.incarnation in f.link.engines)
            await f.seen.until(lambda: f.link.engines[e.incarnation].state is EngineState.DRAINING)
            assert not f.link.engines[e.incarnation].usable


@pytest.mark.parametrize(("last", "reason"), [(Goodbye(), "shut down"), (Dead("no memory"), "no memory")])
async def test_the_last_word_of_an_engine_arrives_after_its_outputs(
    sockets: Path, last: Goodbye | Dead, reason: str
) -> None:
    async with frontend(f"ipc://{sockets}/link") as f:
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)
            for position in range(500):
                e.send(f.link.incarnation, outputs("r", position))
            await asyncio.to_thread(e.close, last)
            assert reason in await f.lost(e.incarnation)
            assert [o.outputs[0].position for _, o in f.seen.outputs] == list(range(500))
            assert len(f.seen.lost) == 1


async def test_a_frontend_that_closes_is_lost_at_once(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link") as f:
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)
            await f.link.close()
            assert await asyncio.to_thread(frontend_lost, e) == f.link.incarnation
            assert not f.seen.lost  # its owner closed it


async def test_restarted_frontend_at_the_same_address_is_found(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    async with frontend(address, frontend_keys) as old:
        address = old.link.addresses
        with engine(address, keys=engine_keys) as e:
            await old.ready(e.incarnation)
            await old.link.close()
            async with frontend(address, frontend_keys) as new:
                await new.ready(e.incarnation)
                assert await asyncio.to_thread(frontend_lost, e) == old.link.incarnation
                _, served = await asyncio.gather(new.ask(e.incarnation), serve_one(e))
                assert served.frontend == new.link.incarnation


async def test_engine_that_was_given_up_drops_requests_and_greets(
    sockets: Path,
) -> None:
    async with frontend(f"ipc://{sockets}/link") as f:
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)
            f.link.lose(e.incarnation, "it sent tokens that do not fit")
            assert e.incarnation not in f.link.engines
            assert not f.seen.lost, "an event never comes from within a command"
            await f.lost(e.incarnation)
            assert f.seen.lost == [(e.incarnation, "it sent tokens that do not fit")]
            assert await asyncio.to_thread(frontend_lost, e) == f.link.incarnation
            await f.ready(e.incarnation)
            await asyncio.gather(f.ask(e.incarnation), serve_one(e))
            assert len(f.seen.lost) == 1


async def test_two_addresses_of_one_frontend_are_one_connection(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Else each connection would take the engine's name over from the other, for ever."""
    async with frontend("tcp://0.0.0.0:0", keys["frontend"], silence=1) as f:
        port = f.link.addresses.rpartition(":")[2]
        addresses = (f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.2:{port}")
        with engine(*addresses, keys=keys["engine"], silence=1) as e:
            e.set_load(STATS, busy=False)  # so that each heartbeat is a change to wait for
            await f.seen.until(lambda: "are one frontend" in caplog.text)
            await f.ready(e.incarnation)
            lost = len(f.seen.lost)
            seen = len(f.seen.changes)
            await f.seen.until(lambda: len(f.seen.changes) > seen + 4)
            assert len(f.seen.lost) == lost
            assert f.link.engines[e.incarnation].usable


async def test_other_address_is_used_after_the_first_has_gone(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with frontend("tcp://0.0.0.0:0", keys["frontend"], silence=4) as f:
        port = f.link.addresses.rpartition(":")[2]
        addresses = (f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.2:{port}")
        with engine(*addresses, keys=keys["engine"], silence=4) as e:
            e.set_load(STATS, busy=False)
            await f.seen.until(lambda: "are one frontend" in caplog.text)
            await f.ready(e.incarnation)
            (first,) = e._frontends._twins.values()
            lost, seen = len(f.seen.lost), len(f.seen.changes)
            e._reactor.post(partial(e._frontends.set_endpoints, parse_address(first), frozenset()))
            await f.seen.until(lambda: len(f.seen.changes) > seen + 4)
            assert len(f.seen.lost) == lost, "it was on the link: it stays until it leaves"
            e._reactor.post(partial(e._frontends._connections[first].peer.drop, "the test drops it"))
            await f.seen.until(lambda: len(f.seen.lost) > lost)
            await f.ready(e.incarnation)
            assert set(e._frontends._connections) == {*addresses} - {first}
            assert not e._frontends._twins


async def test_a_later_address_of_a_frontend_does_not_end_its_requests(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with frontend("tcp://0.0.0.0:0", keys["frontend"]) as f:
        port = f.link.addresses.rpartition(":")[2]
        with engine(f"tcp://127.0.0.1:{port}", keys=keys["engine"], silence=1) as e:
            e.set_load(STATS, busy=False)  # so that each heartbeat is an event
            await f.ready(e.incarnation)
            answer = asyncio.create_task(f.ask(e.incarnation))
            request = await asyncio.to_thread(received, e)
            later = parse_address(f"tcp://127.0.0.2:{port}")
            e._reactor.post(partial(e._frontends.set_endpoints, later, frozenset({later.endpoint()})))
            await f.seen.until(lambda: "are one frontend" in caplog.text)
            e.send(request.frontend, outputs())
            await answer
            assert not f.seen.lost
            assert len(e.accepted) == 1


async def test_another_frontend_joins_after_it_was_probed(keys: dict[str, Path]) -> None:
    """The engine does not know yet that the second endpoint is that of another frontend."""
    address, keys_of = "tcp://127.0.0.1:0", keys["frontend"]
    async with frontend(address, keys_of) as f, frontend(address, keys_of) as g:
        with engine(f.link.addresses, keys=keys["engine"]) as e:
            await f.ready(e.incarnation)
            later = parse_address(g.link.addresses)
            e._reactor.post(partial(e._frontends.set_endpoints, later, frozenset({later.endpoint()})))
            await g.ready(e.incarnation)
            assert list(g.link.engines) == [e.incarnation]
            await asyncio.gather(g.ask(e.incarnation), serve_one(e))
            assert not f.seen.lost


async def test_other_address_is_used_while_the_first_is_silent(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Both addresses stay in the DNS."""
    async with frontend("tcp://127.0.0.1:0", keys["frontend"]) as f, forwarder(f.link.addresses) as first:
        with engine(first.address, keys=keys["engine"], silence=1) as e:
            e.set_load(STATS, busy=False)
            await f.ready(e.incarnation)
            later = parse_address(f.link.addresses)
            e._reactor.post(partial(e._frontends.set_endpoints, later, frozenset({later.endpoint()})))
            await f.seen.until(lambda: "are one frontend" in caplog.text)
            first.close()
            assert await asyncio.to_thread(frontend_lost, e) == f.link.incarnation
            await f.lost(e.incarnation)
            await f.ready(e.incarnation)
            await asyncio.gather(f.ask(e.incarnation), serve_one(e))
            assert e._frontends._twins == {first.address: f.link.addresses}


# --------------------------------------------------------------------------------- processes that die or freeze


async def test_a_killed_engine_is_lost_at_once_and_the_others_go_on(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    async with frontend(address, frontend_keys, silence=10 * PATIENCE) as f:  # by its silence: too late
        with (
            engine(f.link.addresses, keys=engine_keys) as other,
            engine_process(f.link.addresses, "victim", engine_keys) as victim,
        ):
            await f.ready("victim", other.incarnation)
            await f.ask("victim")
            victim.kill()
            assert await f.lost("victim") == "its connection broke"  # not: it was silent
            assert not f.link.send("victim", Abort(["r"]))
            await asyncio.gather(f.ask(other.incarnation), serve_one(other))
            assert [i for i, _ in f.seen.lost] == ["victim"]


async def test_frozen_engine_is_lost_and_comes_back_by_itself(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    async with frontend(address, frontend_keys, silence=1.0) as f:
        with engine_process(f.link.addresses, "frozen", engine_keys, silence=1.0) as process:
            await f.ready("frozen")
            process.send_signal(signal.SIGSTOP)
            assert "silent" in await f.lost("frozen")
            assert "frozen" not in f.link.engines
            process.send_signal(signal.SIGCONT)
            await f.ready("frozen")
            await f.ask("frozen", "after")
            assert len(f.seen.lost) == 1


async def test_a_frontend_that_stood_still_itself_blames_nobody(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link", silence=0.5) as f:
        with engine_process(f.link.addresses, "patient", silence=10):
            await f.ready("patient")
            time.sleep(0.8)  # noqa: ASYNC251  the event loop is blocked on purpose
            await f.ask("patient")
            assert not f.seen.lost


# ----------------------------------------------------------------------------------------------------- idleness


async def test_an_idle_link_uses_no_cpu(transport: Transport) -> None:
    address, frontend_keys, engine_keys = transport
    async with frontend(address, frontend_keys) as f:
        with engine(f.link.addresses, keys=engine_keys) as e1, engine(f.link.addresses, keys=engine_keys) as e2:
            await f.ready(e1.incarnation, e2.incarnation)
            before = resource.getrusage(resource.RUSAGE_SELF)
            await asyncio.sleep(2)  # the idle time that is measured
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            assert used < 0.1, f"{used:.3f} s of CPU in 2 s"


async def test_an_engine_without_its_frontend_uses_no_cpu(sockets: Path) -> None:
    with engine(f"ipc://{sockets}/link", "tcp://127.0.0.1:1"):
        before = os.times()
        await asyncio.sleep(2)
        after = os.times()
        assert after.user + after.system - before.user - before.system < 0.2
