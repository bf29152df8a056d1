"""A ZMQ socket on the event loop: no message waits for a signal that has been used up."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable

import pytest
import uvloop
import zmq

from kvasir.link.frontend_end.loop_socket import BATCH, LoopSocket
from runtime.link.peers import engine, frontend, serve_one, socket_directory

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def _pair(context: zmq.Context[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    left.bind("inproc://pair")
    right.connect("inproc://pair")
    return left, right


@pytest.mark.parametrize("new_loop", LOOPS)
def test_messages_that_came_before_reading_began_are_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        context = zmq.Context()
        left, right = await _pair(context)
        for number in range(3 * BATCH):
            left.send(str(number).encode())
        got, done = [], asyncio.Event()

        def handle(frames: list[bytes]) -> None:
            got.append(int(frames[0]))
            if len(got) == 3 * BATCH:
                done.set()

        reader = LoopSocket(right, handle)
        await asyncio.wait_for(done.wait(), 10)
        assert got == list(range(3 * BATCH))
        reader.close()
        left.close()
        context.term()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_an_answer_that_arrives_during_a_send_is_read(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Ping-pong: each send may use up the signal for the message that came meanwhile."""

    async def scenario() -> None:
        context = zmq.Context()
        left, right = await _pair(context)
        rounds, done = 2000, asyncio.Event()

        def answer(frames: list[bytes]) -> None:
            if int(frames[0]) == rounds:
                done.set()
            else:
                sides[int(frames[0]) % 2].send([str(int(frames[0]) + 1).encode()])

        sides = [LoopSocket(left, answer), LoopSocket(right, answer)]
        sides[0].send([b"0"])
        await asyncio.wait_for(done.wait(), 20)
        for side in sides:
            side.close()
        context.term()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_link_serves_on_every_event_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario() -> None:
        with socket_directory() as directory:
            async with frontend(f"ipc://{directory}/link") as f:
                with engine(f.link.addresses) as e:
                    await f.ready(e.incarnation)
                    for number in range(50):
                        await asyncio.gather(f.ask(e.incarnation, str(number)), serve_one(e))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


def test_a_long_queue_lets_the_loop_serve_others_in_between() -> None:
    async def scenario() -> None:
        context = zmq.Context()
        left, right = await _pair(context)
        for _ in range(5 * BATCH):
            left.send(b"")
        got, done = [], asyncio.Event()
        lengths = []

        def handle(frames: list[bytes]) -> None:
            got.append(frames)
            if len(got) == 5 * BATCH:
                done.set()

        async def other() -> None:
            while not done.is_set():
                lengths.append(len(got))
                await asyncio.sleep(0)

        reader = LoopSocket(right, handle)
        await asyncio.wait_for(other(), 10)
        assert max(after - before for before, after in itertools.pairwise(lengths)) <= 2 * BATCH
        reader.close()
        left.close()
        context.term()

    asyncio.run(scenario())


@pytest.mark.parametrize("module", ["kvasir.link.frontend_end.frontend_link", "kvasir.link.engine_end.engine_link"])
def test_neither_end_of_the_link_imports_torch(module: str) -> None:
    """The engine's end sends Hello before torch is imported."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
