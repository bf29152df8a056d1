"""Measures the cost of an engine's black box, and how soon a frontend notices that an engine was killed.

python bench/losses.py
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kvasir.config.settings import LinkConfig
from kvasir.engine.health.black_box import BlackBox, BoxFile
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.link_events import EngineChanged, EngineLost
from kvasir.link.protocol import AddRequest
from kvasir.params import SamplingParams

ROWS = (1, 64, 256)
MEBIBYTES = (0, 512)
"""Memory of the killed process, in addition to its own."""
KILLS = 7

_ENGINE = """
import sys, time
from kvasir.config.settings import LinkConfig
from kvasir.link.engine_end.engine_link import EngineIdentity, EngineLink, new_incarnation
from kvasir.link.protocol import Ready

memory = bytearray(int(sys.argv[2]) * 2**20)
memory[::4096] = b"x" * len(memory[::4096])
identity = EngineIdentity(new_incarnation(0), 0, "node", "", "0", "model", "tokenizer")
link = EngineLink(LinkConfig(link=(sys.argv[1],)), identity, lambda event: None)
link.start()
link.announce_ready(Ready(16, 100, 4096, 64))
time.sleep(600)
"""


def microseconds(call: Callable[[], None], times: int = 2000) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def black_box(folder: Path) -> None:
    params = SamplingParams(max_tokens=16, seed=0)
    for rows in ROWS:
        box = BlackBox("engine-0-01234567", BoxFile(folder / f"box-{rows}"))
        requests = [
            EngineRequest("frontend", AddRequest(f"chatcmpl-{n:032}", 1, bytes(64), b"", params))
            for n in range(rows + 1)
        ]
        steps = [[(request, 1) for request in part] for part in (requests[1:], requests[:-1])]

        def change(box: BlackBox = box, steps: list[list[tuple[EngineRequest, int]]] = steps) -> None:
            for step in steps:
                box.note([step])

        def repeat(box: BlackBox = box, steps: list[list[tuple[EngineRequest, int]]] = steps) -> None:
            box.note([steps[-1]])

        changes, none = microseconds(change) / 2, microseconds(repeat)
        print(f"{rows} rows: {changes:.1f} µs for a change, {none:.1f} µs for none")


async def kills(folder: Path, mebibytes: int) -> None:
    changed = asyncio.Event()
    link = FrontendLink(
        LinkConfig(link=(f"ipc://{folder}/link",)),
        service="",
        fingerprint="model",
        tokenizer_hash="tokenizer",
        wake=changed.set,
    )
    await link.start()

    async def until(kind: type[EngineChanged] | type[EngineLost]) -> None:
        while True:
            while link.events:
                if isinstance(link.events.popleft(), kind):
                    return
            changed.clear()
            await changed.wait()

    taken = []
    for _ in range(KILLS):
        command = (sys.executable, "-c", _ENGINE, link.addresses, str(mebibytes))
        engine = subprocess.Popen(command)  # noqa: ASYNC220
        await until(EngineChanged)
        began = time.perf_counter()
        engine.kill()
        await until(EngineLost)
        taken.append(1000 * (time.perf_counter() - began))
        engine.wait()
    await link.close()
    print(f"{mebibytes} MiB: noticed after {statistics.median(taken):.0f} ms, at most {max(taken):.0f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="kvl-") as name:
        black_box(Path(name))
        for size in MEBIBYTES:
            asyncio.run(kills(Path(name), size))
