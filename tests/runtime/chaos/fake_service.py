"""A service without engines for tests of chaos runs: it answers every request, until it is disturbed."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvasir.chaos.disturbances import DisturbanceKind
from loopback_server import LoopbackHandler, LoopbackServer, serving

TOKENS = 8


class FakeService(LoopbackServer):
    """Has two engines. Each answer follows from its request alone."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.usable = {"0", "1"}
        self.damage = ""
        """A fault of all answers: "" none, or lost, refused, wrong, cut."""
        self.rejected = ""
        """A field whose requests are rejected."""
        self.ends = False
        """Answers say that they are complete."""
        self.drifts = False
        """Each answer is another one."""
        self.answered = 0


class FakeTarget:
    """Does `damage` to the answers of the service, for ever; the engine comes back at once if `recovers`."""

    kinds = frozenset({DisturbanceKind.KILL, DisturbanceKind.FREEZE})

    def __init__(self, service: FakeService, damage: str = "", recovers: bool = True) -> None:
        self._service = service
        self._damage = damage
        self._recovers = recovers
        self.most_disturbed = 0
        self._disturbed = 0

    async def engines(self) -> list[str]:
        return ["0", "1"]

    async def disturb(self, kind: DisturbanceKind, rank: str) -> None:
        self._service.damage = self._damage
        self._service.usable.discard(rank)
        self._disturbed += 1
        self.most_disturbed = max(self.most_disturbed, self._disturbed)
        if self._recovers:
            await asyncio.sleep(0.5)  # the run looks every 0.2 s
            self._service.usable.add(rank)
        self._disturbed -= 1


@contextmanager
def fake_service() -> Iterator[FakeService]:
    with serving(FakeService()) as service:
        yield service


class _Handler(LoopbackHandler):
    server: FakeService

    def do_GET(self) -> None:
        lines = [f'kvasir:engine_usable{{model_name="m",engine="{r}"}} {r in self.server.usable:d}.0' for r in "01"]
        lines += ['kvasir:migrations_total{exact="true"} 2.0', 'kvasir:migrations_total{exact="false"} 1.0']
        self.send(200, "\n".join(lines).encode())

    def do_POST(self) -> None:
        body = json.loads(self.body())
        with self.server.lock:
            self.server.answered += 1
            number = self.server.answered
        damage = self.server.damage
        if self.server.rejected in body:
            self.send(400, b'{"error": {"message": "not here", "code": null}}')
        elif damage in ("lost", "refused"):
            code = "engine_failed_repeatedly" if damage == "refused" else None
            self.send(500, json.dumps({"error": {"message": "an engine was lost", "code": code}}).encode())
        else:
            given = [body.get("prompt"), body.get("seed"), damage == "wrong", number if self.server.drifts else 0]
            words = [hashlib.sha1(f"{given} {n}".encode()).hexdigest()[:4] for n in range(TOKENS)]
            reason = "stop" if self.server.ends else None
            self.send(200, _stream(words, damage, reason) if body.get("stream") else _whole(words, number, reason))


def _whole(words: list[str], number: int, reason: str | None) -> bytes:
    usage = {"completion_tokens": TOKENS, "prompt_tokens_details": {"cached_tokens": number}}
    choice = {"index": 0, "text": " ".join(words), "finish_reason": reason}
    return json.dumps({"id": str(number), "choices": [choice], "usage": usage}).encode()


def _stream(words: list[str], damage: str, reason: str | None) -> bytes:
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "text": f"{word} "}]} for word in words]
    chunks.append({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": {"completion_tokens": TOKENS}})
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join(events + ["data: [DONE]\n\n"] * (damage != "cut")).encode()
