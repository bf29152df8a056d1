"""Measures the cost of an engine's black box, and how soon a frontend notices that an engine was killed.

python bench/losses.py
python bench/losses.py --model /tmp/llama-126m --kv-cache-memory-bytes 4Gi --small-pages --kills 3

Without a model, the killed processes have memory in pages of 4 KiB, and every second one has no death watch. With a
model, they are real engines that compute, and their KV cache was used up to its last block.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import ModelConfig
from kvasir.engine.health.black_box import BlackBox, BoxFile
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.hub.located_model import read_model
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.link_events import EngineChanged, EngineLost, LinkEvent, OutputsReceived
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed

ROWS = (1, 64, 256)
# Memory of the processes that are killed without a model.
MEBIBYTES = (0, 512, 4096)
PR_SET_THP_DISABLE = 41

_SMALL_ENGINE = """
import sys, time
from kvasir.config.process_settings import LinkConfig
from kvasir.wire.death_watch import start_death_watch
from kvasir.link.engine_end.engine_link import EngineIdentity, EngineLink, new_incarnation
from kvasir.link.protocol import Ready

memory = bytearray(int(sys.argv[2]) * 2**20)
memory[::4096] = b"x" * len(memory[::4096])
watch = start_death_watch() if sys.argv[3] == "watched" else None
identity = EngineIdentity(new_incarnation(0), 0, "node", "", "0", "model", "tokenizer")
link = EngineLink(LinkConfig(link=(sys.argv[1],)), identity, lambda event: None, death_watch=watch)
link.start()
link.announce_ready(Ready(16, 100, 4096, 64))
time.sleep(600)
"""


def microseconds(call: Callable[[], None], times: int = 2000) -> float:
    # Median.
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


class Engines:
    """Starts engines one after the other and kills them, with a frontend's end of the link."""

    def __init__(self, folder: Path, model: str | None, cache: str) -> None:
        fingerprint, tokenizer = "model", "tokenizer"
        if model is not None:
            info = read_model(ModelConfig(model))
            fingerprint, tokenizer = info.fingerprint, info.tokenizer_hash
        self._model, self._cache = model, cache
        self._changed = asyncio.Event()
        self._random = random.Random(0)
        self.link = FrontendLink(
            LinkConfig(link=(f"ipc://{folder}/link",)),
            service="",
            fingerprint=fingerprint,
            tokenizer_hash=tokenizer,
            wake=self._changed.set,
        )

    async def kill_one(self, name: str, *arguments: str, small_pages: bool = False) -> None:
        # `arguments`: of a small engine.
        with without_huge_pages() if small_pages else contextlib.nullcontext():
            process = subprocess.Popen(self._command(*arguments), stdin=subprocess.DEVNULL)  # noqa: ASYNC220
        engine = await self._ready()
        if self._model is not None:
            await self._fill(engine)
        await asyncio.sleep(1)  # an engine takes seconds to start, and its connection keeper a part of one
        memory = resident(process.pid)
        ended = os.pidfd_open(process.pid)
        began = time.perf_counter()
        process.kill()
        await self._until(lambda event: isinstance(event, EngineLost))
        noticed = time.perf_counter() - began
        await asyncio.get_running_loop().run_in_executor(None, select.select, [ended], [], [])
        gone = time.perf_counter() - began
        os.close(ended)
        process.wait()
        print(
            f"{name}: noticed after {1000 * noticed:.0f} ms, gone after {1000 * gone:.0f} ms at most; {memory}; "
            f"load of the machine {os.getloadavg()[0]:.1f}",
            flush=True,
        )

    def _command(self, *arguments: str) -> list[str]:
        if self._model is None:
            return [sys.executable, "-c", _SMALL_ENGINE, self.link.addresses, *arguments]
        options = ["--link", self.link.addresses, "--ops-port", "0", "--log-level", "warning"]
        command = [sys.executable, "-m", "kvasir.cli.main", "engine", self._model, *options]
        return [*command, "--kv-cache-memory-bytes", self._cache]

    async def _ready(self) -> RemoteEngine:
        event = await self._until(lambda event: isinstance(event, EngineChanged) and bool(event.engine.capacity))
        assert isinstance(event, EngineChanged)
        return event.engine

    async def _fill(self, engine: RemoteEngine) -> None:
        """Use every block of the KV cache, then have the engine generate."""
        assert engine.capacity is not None
        tokens = min(2000, engine.capacity.max_model_len - 1)
        prompts = engine.capacity.num_blocks * engine.capacity.block_size // tokens + 1
        for number in range(prompts):
            self._ask(engine, number, tokens, 1)
            await self._until(lambda event: isinstance(event, OutputsReceived))
        self._ask(engine, prompts, 16, engine.capacity.max_model_len - 16)
        await self._until(lambda event: isinstance(event, OutputsReceived))

    def _ask(self, engine: RemoteEngine, number: int, tokens: int, outputs: int) -> None:
        prompt = [self._random.randrange(200, 500) for _ in range(tokens)]
        params = SamplingParams(max_tokens=outputs, seed=0, temperature=0, ignore_eos=True)
        self.link.send(engine.incarnation, AddRequest(f"request-{number}", 1, packed(prompt), b"", params))

    async def _until(self, wanted: Callable[[LinkEvent], bool]) -> LinkEvent:
        while True:
            while self.link.events:
                event = self.link.events.popleft()
                if wanted(event):
                    return event
            self._changed.clear()
            await self._changed.wait()


@contextlib.contextmanager
def without_huge_pages() -> Iterator[None]:
    # New processes have pages of 4 KiB only, as on a machine with huge pages disabled.
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    yield
    assert prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0


def resident(pid: int) -> str:
    # By kind of memory.
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    mib = {line[0]: int(line[1]) // 1024 for line in lines}
    return (
        f"{mib['Rss:']} MiB resident, of which {mib['AnonHugePages:']} MiB in huge pages and "
        f"{mib['Rss:'] - mib['Anonymous:']} MiB of files"
    )


async def kills(folder: Path, args: argparse.Namespace) -> None:
    engines = Engines(folder, args.model, args.kv_cache_memory_bytes)
    await engines.link.start()
    for _ in range(args.kills):
        if args.model is not None:
            await engines.kill_one("huge pages")
            if args.small_pages:
                await engines.kill_one("4 KiB pages", small_pages=True)
            continue
        for mebibytes in MEBIBYTES:
            for watch in ("watched", "not watched"):
                await engines.kill_one(f"{mebibytes} MiB, {watch}", str(mebibytes), watch)
    await engines.link.close()


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="kill real engines with this model")
    parser.add_argument("--kv-cache-memory-bytes", default="1Gi")
    parser.add_argument("--small-pages", action="store_true", help="kill each second engine without huge pages")
    parser.add_argument("--kills", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvl-") as name:
        if args.model is None:
            black_box(Path(name))
        asyncio.run(kills(Path(name), args))


if __name__ == "__main__":
    main()
