"""Two engine processes, with the fake executor: one computes a request with the KV blocks of the other."""

import sys
from pathlib import Path

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import AddRequest, RequestOutput
from kvasir.tokens import packed
from runtime.engine.engine_under_test import Frontend, params, run_engine

FAKE = str(Path(__file__).parent.with_name("engine_with_fake_executor.py"))
PROMPT = [5 + place % 200 for place in range(150)]


def engine_command(address: str, *options: str) -> list[str]:
    return [sys.executable, FAKE, "serve", "demo://", "--link", address, "--block-size", "4", *options]


async def two_engines(frontend: Frontend) -> list[RemoteEngine]:
    await frontend.until(lambda: sum(engine.usable for engine in frontend.link.engines.values()) == 2)
    return list(frontend.link.engines.values())


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def generate(frontend: Frontend, engine: RemoteEngine, request_id: str, source: str = "") -> list[int]:
    message = AddRequest(request_id, 0, packed(PROMPT), b"", params(12), kv_source=source)
    assert frontend.link.send(engine.incarnation, message)
    await frontend.answer(request_id)
    return tokens(frontend.received(request_id))


async def test_an_engine_continues_with_the_blocks_of_another(frontend: Frontend, address: str) -> None:
    async with run_engine(*engine_command(address)), run_engine(*engine_command(address)):
        first, second = await two_engines(frontend)
        assert first.kv_address
        assert first.kv_address != second.kv_address
        expected = await generate(frontend, first, "computed")
        assert await generate(frontend, second, "fetched", first.kv_address) == expected
        assert frontend.received("fetched")[0].num_cached_tokens == 148
        assert await generate(frontend, second, "again") == expected


async def test_an_engine_without_hand_over_computes(frontend: Frontend, address: str) -> None:
    off = ("--kv-hand-over", "off")
    async with run_engine(*engine_command(address)), run_engine(*engine_command(address, *off)):
        engines = await two_engines(frontend)
        [first] = [engine for engine in engines if engine.kv_address]
        [second] = [engine for engine in engines if not engine.kv_address]
        expected = await generate(frontend, first, "computed")
        assert await generate(frontend, second, "recomputed", first.kv_address) == expected
        assert frontend.received("recomputed")[0].num_cached_tokens == 0
