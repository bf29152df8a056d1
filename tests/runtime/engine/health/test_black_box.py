import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.health.black_box import FILE_BYTES, SLOT_BYTES, BlackBox, BoxFile, open_box
from kvasir.link.protocol import FailedStep, StepRequest
from kvasir.request.hashing import DIGEST_BYTES
from runtime.engine.core_harness import CoreHarness, add_request

ID = "chatcmpl-" + 32 * "a"


def step(*names: str, incarnation: str = "engine-0-a") -> FailedStep:
    return FailedStep(incarnation, tuple(StepRequest(name, name.encode().ljust(DIGEST_BYTES)) for name in names))


def last(path: Path) -> FailedStep | None:
    file = BoxFile(path)
    file.close()
    return file.last


def requests(*names: str) -> list[EngineRequest]:
    return [EngineRequest("frontend", add_request(name, [1, 2])) for name in names]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box"


def test_successor_reads_what_was_written_last(path: Path) -> None:
    assert last(path) is None
    file = BoxFile(path)
    for written in (step("a"), step("a", "b"), step()):
        file.write(written)
    file.close()
    assert last(path) == step()
    assert path.stat().st_mode & 0o777 == 0o600


def test_content_survives_a_process_that_is_killed(path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from kvasir.engine.health.black_box import BoxFile\n"
        "from kvasir.link.protocol import FailedStep, StepRequest\n"
        "BoxFile(Path(sys.argv[1])).write(FailedStep('engine-0-a', (StepRequest('r', b'd'),)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -9
    assert last(path) == FailedStep("engine-0-a", (StepRequest("r", b"d"),))


@pytest.mark.parametrize("place", [0, 5, 14, 20, 40])
def test_torn_write_leaves_the_one_before(path: Path, place: int) -> None:
    """A byte of the last write is missing; `place` is its offset in the slot."""
    file = BoxFile(path)
    file.write(step("a"))
    file.write(step("b"))
    file.close()
    content = bytearray(path.read_bytes())
    slot = next(
        offset for offset in (0, SLOT_BYTES) if b"b               " in content[offset : offset + SLOT_BYTES]
    )
    content[slot + place] ^= 0xFF
    path.write_bytes(content)
    assert last(path) == step("a")
    file = BoxFile(path)
    file.write(step("c"))
    file.close()
    assert last(path) == step("c")


def test_box_is_written_only_when_the_requests_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = BoxFile(path)
    written: list[FailedStep] = []
    monkeypatch.setattr(file, "write", written.append)
    box = BlackBox("engine-0-a", file)
    a, b = requests("a", "b")
    box.note([[(a, 1), (b, 1)]])
    box.note([[(a, 0), (b, 1)]])
    box.note([[(a, 1)]])
    box.note([[(a, 1)], [(b, 1)]])
    box.clear()
    box.clear()
    ids = [[request.request_id for request in each.requests] for each in written]
    assert ids == [["a", "b"], ["a"], ["a", "b"], []]
    assert box.step == step()


def test_predecessors_step_stays_until_the_first_one(path: Path) -> None:
    file = BoxFile(path)
    file.write(step("a", incarnation="engine-0-old"))
    file.close()
    file = BoxFile(path)
    BlackBox("engine-0-new", file)
    file.close()
    assert last(path) == step("a", incarnation="engine-0-old")
    file = BoxFile(path)
    BlackBox("engine-0-newer", file).clear()
    file.close()
    assert last(path) == FailedStep("engine-0-newer")


@pytest.mark.parametrize("count", [64, 1024, 10_000])
def test_large_steps_keep_their_digests(path: Path, count: int) -> None:
    whole = FailedStep("engine-0-a", tuple(StepRequest(f"{ID}{n}", n.to_bytes(16)) for n in range(count)))
    file = BoxFile(path)
    file.write(whole)
    file.close()
    found = last(path)
    assert found is not None
    digests = [request.digest for request in whole.requests]
    assert [request.digest for request in found.requests] == digests[: len(found.requests)]
    assert len(found.requests) == count or len(found.requests) > 2000


def test_second_process_does_without_the_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = open_box(str(path))
    assert first is not None
    with caplog.at_level(logging.WARNING):
        assert open_box(str(path)) is None
    assert "cannot be used" in caplog.text
    first.close()


@pytest.mark.parametrize("content", [b"", b"text", b"\0" * FILE_BYTES, b"kvb1" + b"\xff" * FILE_BYTES])
def test_strange_file_is_taken_as_empty(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    file = BoxFile(path)
    assert file.last is None
    file.write(step("a"))
    file.close()
    assert last(path) == step("a")


def test_link_in_place_of_the_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    os.symlink(target, path)
    assert open_box(str(path)) is None
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_core_names_what_it_computes_before_it_does(max_in_flight: int) -> None:
    engine = CoreHarness(max_num_seqs=2, max_in_flight=max_in_flight)
    box = engine.core.black_box = BlackBox("engine-0-a")
    seen: list[set[str]] = []
    engine.executor.before_step = lambda: seen.append({request.request_id for request in box.step.requests})
    for name in ("a", "b", "waits"):
        engine.add(add_request(name, [1, 2], 4))
    engine.run()
    computed = [{row.request_id for row in each.scheduled} for each in engine.executor.steps]
    assert all(step_ids <= box_ids for step_ids, box_ids in zip(computed, seen, strict=True))
    assert seen[0] == {"a", "b"}
    assert {"waits"} in seen
