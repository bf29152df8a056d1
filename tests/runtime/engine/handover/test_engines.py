"""Two engine processes, with the fake executor: one computes a request with the KV blocks of the other."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import AddRequest, RequestOutput
from kvasir.request.tokens import packed
from kvasir_contract.endpoints import KV_HAND_OVER_PORT
from kvasir_contract.environment import POD_IP
from runtime.engine.engine_under_test import Frontend, params, run_engine
from runtime.link.written_keys import write_link_keys

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


async def test_engines_of_pods_exchange_blocks_encrypted(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the operator starts them: with link keys, and a variable with the address of the pod."""
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    command = engine_command(address, "--link-keys", str(tmp_path / "engine"))
    pod_ips = [f"127.{os.getpid() // 256 % 256}.{os.getpid() % 256}.{last}" for last in (7, 8)]
    frontend = Frontend(address, keys=tmp_path / "frontend")
    await frontend.link.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(frontend.link.close)
        for ip in pod_ips:
            monkeypatch.setenv(POD_IP, ip)
            await stack.enter_async_context(run_engine(*command))
        first, second = await two_engines(frontend)
        assert sorted((first.kv_address, second.kv_address)) == [
            f"tcp://{ip}:{KV_HAND_OVER_PORT}" for ip in pod_ips
        ]
        expected = await generate(frontend, first, "computed")
        assert await generate(frontend, second, "fetched", first.kv_address) == expected
        assert frontend.received("fetched")[0].num_cached_tokens == 148


async def test_an_engine_without_hand_over_computes(frontend: Frontend, address: str) -> None:
    off = ("--kv-hand-over", "off")
    async with run_engine(*engine_command(address)), run_engine(*engine_command(address, *off)):
        engines = await two_engines(frontend)
        [first] = [engine for engine in engines if engine.kv_address]
        [second] = [engine for engine in engines if not engine.kv_address]
        expected = await generate(frontend, first, "computed")
        assert await generate(frontend, second, "recomputed", first.kv_address) == expected
        assert frontend.received("recomputed")[0].num_cached_tokens == 0
