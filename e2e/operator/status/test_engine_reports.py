"""Hostile /status responses of engines and frontends do not stop the operator or invalidate the status."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

from e2e.operator.harness import fake_engines
from e2e.operator.harness.fake_engines import Answer, body, raw_report, report
from e2e.operator.harness.pod_status import starting
from e2e.operator.harness.world import World

PATIENCE: Final = 10.0
"""Limit in seconds of a reconcile if no rank responds."""
MAX_GROWTH_MB: Final = 48
"""Limit of the growth of this process's memory, with operator and fake engines."""
MAX_MESSAGE: Final = 1100
MAX_STATUS_BYTES: Final = 40_000
DEEP: Final = 10**6


def hostile(target: list[str], hits: list[str]) -> dict[str, Answer]:
    """Return the responses by name. `target` receives the URL of redirects, whose requests are added to `hits`."""

    async def hit(writer: asyncio.StreamWriter) -> None:
        hits.append("redirected")
        await report(message="REDIRECTED")(writer)

    return {
        "endless": fake_engines.endless,
        "endless headers": fake_engines.endless_headers,
        "slow": fake_engines.slow,
        "silent": fake_engines.silent,
        "gzip bomb": fake_engines.gzip_bomb(256),
        "small gzip bomb": fake_engines.small_gzip_bomb(),
        "redirect": fake_engines.redirect(lambda: target[0]),
        "target": hit,
        "infinity": raw_report('{"done": Infinity, "total": Infinity}'),
        "nan": raw_report('{"done": NaN, "total": 1}'),
        "huge exponent": raw_report('{"done": 1e999, "total": 1e999}'),
        "many digits": raw_report('{"done": 1, "total": ' + "9" * 10_000 + "}"),
        "negative": raw_report('{"done": -5, "total": -10}'),
        "zero": raw_report('{"done": 0, "total": 0}'),
        "text": raw_report('{"done": "1", "total": "x"}'),
        "list": raw_report("[1, 2]"),
        "deep": body(b"[" * DEEP + b"]" * DEEP),
        "deep and short": body(b'{"phase": "Loading", "message": ' + b"[" * 8000 + b"]" * 8000 + b"}"),
        "long message": report(message="x" * 15_000),
        "many lines": report(message="a\n" * 5_000),
        "control characters": report(message="\x00\x1b[2J\u202e", phase="Starting"),
        "half a character": body(b'{"phase": "Loading", "message": "\\ud800", "progress": null}'),
        "not UTF-8": body(b'{"phase": "Loading", "message": "\xff\xfe"}'),
        "unknown phase": report(phase="x" * 5_000),
        "object as a phase": report(phase={"a": 1}),
        "not HTTP": lambda writer: _write(writer, b"SSH-2.0-OpenSSH_9.9\r\n"),
        "sane": report(message="sane"),
    }


async def test_hostile_reports_neither_stop_nor_fill_the_operator(world: World) -> None:
    target: list[str] = []
    hits: list[str] = []
    answers = hostile(target, hits)
    names = list(answers)
    async with fake_engines.fake_engines(answers) as (port, addresses), world.in_process(port=port) as operator:
        target.append(f"http://{addresses['target']}:{port}/status")
        ranks = await running(world, operator, addresses)
        hits.clear()
        before = reset_peak()
        began = time.monotonic()
        await operator.reconcile()
        took, growth = time.monotonic() - began, peak() - before
        print(f"{len(names)} hostile engines: {took:.1f} s, memory +{growth:.1f} MB")
        assert took < PATIENCE
        assert growth < MAX_GROWTH_MB
        assert len(hits) == 1, "a redirect was followed"  # the one request is to the target's own pod
        status = await world.status()
        shown = {names[int(rank["rank"])]: rank for rank in status["engines"]["ranks"]}
        assert len(shown) == ranks
        assert_sane(status)
        assert (shown["sane"]["phase"], shown["sane"]["message"]) == ("Loading", "sane")
        assert "REDIRECTED" not in json.dumps(shown["redirect"])
        for name in ("infinity", "nan", "huge exponent", "negative", "many digits", "text", "list"):
            assert not set(shown[name].get("progress", "")) - set("0123456789./% KMGTiB"), shown[name]


async def test_a_hostile_frontend_does_not_stop_the_operator(world: World) -> None:
    answers = {"frontend": fake_engines.gzip_bomb(64), "engine": report(message="sane")}
    async with fake_engines.fake_engines(answers) as (port, addresses), world.in_process(port=port) as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        (frontend,) = await world.eventually(lambda: world.pods("frontend"))
        await world.set_pod(frontend, {**starting("frontend"), **at(addresses["frontend"])})
        (engine,) = await world.pods("engine")
        await world.set_pod(engine, {**starting("engine"), **at(addresses["engine"])})
        before = reset_peak()
        began = time.monotonic()
        await operator.reconcile()
        assert time.monotonic() - began < PATIENCE
        assert peak() - before < MAX_GROWTH_MB
        (rank,) = (await world.status())["engines"]["ranks"]
        assert rank["message"] == "sane"


async def test_a_huge_termination_message_is_cut(world: World) -> None:
    """The kubelet keeps 4096 bytes, but the API server accepts any length from a kubelet."""
    await world.create()
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "y" * 200_000}}
    status = starting("engine", lastState=ended, restartCount=1)
    await world.set_pod(pod, status)
    await world.reconcile()
    assert_sane(await world.status())


async def running(world: World, operator: Any, addresses: Any) -> int:
    """Create a rank for each address, with a container that runs there and is not ready."""
    ranks = len(addresses)
    await world.create(engine={"dataParallelSize": ranks})
    await operator.reconcile()
    await world.settled(ranks=ranks)
    by_rank = dict(enumerate(addresses.values()))
    for pod in await world.pods("engine"):
        rank = int(pod["metadata"]["name"].rpartition("-")[2])
        await world.set_pod(pod, {**starting("engine"), **at(by_rank[rank])})
    return ranks


def at(address: str) -> dict[str, Any]:
    return {"podIP": address, "podIPs": [{"ip": address}]}


def assert_sane(status: Any) -> None:
    """Assert that the status is small and its messages are limited."""
    texts = [entry["message"] for entry in status["conditions"]]
    texts += [rank.get("message", "") for rank in status["engines"]["ranks"]]
    assert max(map(len, texts)) <= MAX_MESSAGE
    assert len(json.dumps(status)) < MAX_STATUS_BYTES


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def reset_peak() -> float:
    """Return the memory of this process in MB, and reset `peak`."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1000
