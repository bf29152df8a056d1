"""Settings and descriptors reach a process that is not a child, of the same user only."""

import os
import threading
from pathlib import Path

import msgspec
import pytest

from kvasir.executor.processes.worker_messages import WorkerSetup
from kvasir.executor.ray_workers.handover import HandoverError, HandoverListener, hand_over, take_over
from kvasir.executor.shared_memory.channel import EngineChannel, WorkerChannel
from kvasir.hub.model_info import load_model_info
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings

WAIT = 30.0


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    model = load_model_info(save(llama(), tmp_path_factory.mktemp("llama")))
    return WorkerSetup(
        rank=0,
        handle=EngineChannel(1).handle(0),
        settings=engine_settings(),
        model=model,
        engine_pid=os.getpid(),
        stack_descriptor=-1,
        rendezvous=None,
        log_name="engine-0-worker-0",
        log_level="info",
        log_format="text",
    )


def test_a_worker_takes_over_the_memory_and_the_descriptors(setup: WorkerSetup, tmp_path: Path) -> None:
    channel = EngineChannel(1)
    file = os.open(tmp_path / "rendezvous", os.O_CREAT | os.O_RDWR)
    stack, written = os.pipe()
    setup = msgspec.structs.replace(setup, handle=channel.handle(0), stack_descriptor=written, rendezvous=file)
    listener = HandoverListener()
    taken = []
    worker = threading.Thread(target=lambda: taken.append(take_over(listener.address)))
    worker.start()
    found = listener.accept(WAIT)
    assert found is not None
    control, pid = found
    assert pid == os.getpid()
    hand_over(control, setup)
    worker.join(WAIT)
    [(_, delivery)] = taken
    mine = delivery.setup
    assert mine.settings == setup.settings
    assert mine.model == setup.model
    assert isinstance(mine.rendezvous, int)
    assert os.path.sameopenfile(mine.rendezvous, file)
    assert os.path.sameopenfile(delivery.stderr, 2)
    os.write(mine.stack_descriptor, b"stack")
    assert os.read(stack, 5) == b"stack"
    channel.close_handles()
    theirs = WorkerChannel(mine.handle)
    channel.requests.write(b"frame")
    assert theirs.requests.read() == b"frame"
    theirs.replies.write(b"reply")
    assert channel.replies.read(WAIT) == [b"reply"]
    for descriptor in (file, mine.rendezvous, stack, written):
        os.close(descriptor)


def test_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = HandoverListener()
    errors = []

    def take() -> None:
        try:
            take_over(listener.address)
        except HandoverError as error:
            errors.append(str(error))

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    worker = threading.Thread(target=take)
    worker.start()
    assert listener.accept(WAIT) is None
    worker.join(WAIT)
    assert errors == ["the engine has ended"]


def test_an_address_of_another_container_is_named() -> None:
    listener = HandoverListener()
    listener.close()
    with pytest.raises(HandoverError, match="must run in the same container as the engine"):
        take_over(listener.address)


def test_a_listener_without_a_worker_returns_in_time() -> None:
    assert HandoverListener().accept(0.01) is None
