"""Thousands of malformed requests against a running service: no 5xx, no hang, and nothing left behind.

    python -m bench.fuzz --requests 10000              # the fuzzer, against a demo service that it starts
    python -m bench.fuzz --requests 0 --examples 500   # schemathesis, by the service's OpenAPI description
    python -m bench.fuzz --url http://127.0.0.1:8000
    python -m bench.fuzz --pooling --requests 2000     # the demo model makes vectors

Every answer must come in time, complete, with a status below 500 (503 only while no engine is usable), and errors
must be OpenAI's object, or Anthropic's. In the end nothing may be live, no KV block in use, no engine may have
restarted, and a good request is answered. A failure prints its number: --only NUMBER sends that one alone. Exit
code 1 if anything failed.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from bench.malformed.cases import case
from bench.malformed.valid import Case
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parents[1]
# Checks of schemathesis. Not positive_data_acceptance: valid values can still exceed the context.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection,unsupported_method"
)

# Unlimited answers are short, and half a request soon gets 408.
SERVE = ("--port", "0", "--served-model-name", "demo", "--max-model-len", "64", "--upload-timeout", "2s")

EMBED = ("--task", "embed", "--hf-overrides", '{"is_matryoshka": true}')


@dataclass
class Report:
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    # Seconds, number.
    slowest: tuple[float, int] = (0.0, 0)

    def fail(self, number: int, case: Case, what: str) -> None:
        self.failures.append(f"number {number} ({case.kind}): {what}\n    sent {case.data[:300]!r}")


async def fuzz(
    url: str,
    seed: int,
    numbers: range,
    *,
    connections: int,
    patience: float,
    quiet: bool,
    pooling: bool = False,
) -> Report:
    """Send these cases over so many connections at a time; each must be over within `patience` seconds."""
    report, waiting = Report(), iter(numbers)
    columns = (TextColumn("malformed requests"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=quiet) as progress:
        task = progress.add_task("", total=len(numbers))

        async def client() -> None:
            for number in waiting:
                await _send(url, number, case(seed, number, pooling=pooling), report, patience)
                progress.advance(task)

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(client())
    return report


async def _send(url: str, number: int, case: Case, report: Report, patience: float) -> None:
    started = time.monotonic()
    try:
        async with asyncio.timeout(patience):
            answer = await _exchange(url, case)
    except TimeoutError:
        report.fail(number, case, f"no end after {patience:g} s")
        return
    except asyncio.IncompleteReadError as error:
        if error.partial:
            report.fail(number, case, f"the answer ends in the middle: {error.partial[:300]!r}")
            return
        answer = None  # the connection is closed without a word
    except ConnectionError:  # the server has refused the beginning
        answer = None
    report.slowest = max(report.slowest, (time.monotonic() - started, number))
    report.statuses[_kind_of(case, answer)] += 1
    if answer is not None and (problem := answer.problem()):
        report.fail(number, case, problem)


def _kind_of(case: Case, answer: "Answer | None") -> str:
    if answer is None:
        return "hung up" if case.hang_up else "closed without a word"
    return str(answer.status)


OPENAIS_FIELDS: Final = {"message", "type", "param", "code"}
ANTHROPICS_FIELDS: Final = {"message", "type"}


@dataclass(frozen=True)
class Answer:
    status: int
    head: bytes
    body: bytes

    def problem(self) -> str | None:
        if b"\nx-request-id: " not in self.head.lower():
            return f"status {self.status} without a request id: {self.head!r}"
        if self.status >= 500:
            return f"status {self.status}: {self.body[:300]!r}"
        if self.status < 400 or not self.body:
            return None
        try:
            body = json.loads(self.body)
            error = body["error"]
        except (ValueError, KeyError, TypeError):
            return f"status {self.status} has no error object: {self.body[:300]!r}"
        fields = ANTHROPICS_FIELDS if body.get("type") == "error" else OPENAIS_FIELDS
        if not error["message"] or set(error) != fields:
            return f"status {self.status} with an incomplete error: {self.body[:300]!r}"
        return None


async def _exchange(url: str, case: Case) -> Answer | None:
    # None for a client that does not wait for the answer. Raises IncompleteReadError.
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(case.data)
        await writer.drain()
        if case.hang_up:
            if case.read_first:
                await reader.read(100)
            return None
        return await _read(reader, has_body=not case.data.startswith(b"HEAD "))
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, has_body: bool) -> Answer:
    # Raises IncompleteReadError.
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100 "):
        head = await reader.readuntil(b"\r\n\r\n")
    body = b""
    if has_body:
        if length := re.search(rb"(?i)\ncontent-length: (\d+)", head):
            body = await reader.readexactly(int(length[1]))
        elif b"transfer-encoding: chunked" in head.lower():
            while (size := int(await reader.readline(), 16)) > 0:
                body += (await reader.readexactly(size + 2))[:-2]
    return Answer(int(head[9:12]), head, body)


def engines(url: str) -> dict[str, bool]:
    # Incarnation → usable.
    return {each["incarnation"]: each["usable"] for each in httpx.get(f"{url}/health").json()["engines"]}


def left_behind(url: str, patience: float = 20.0) -> str | None:
    """Wait until nothing is held, and return the rest; None if nothing is."""
    deadline = time.monotonic() + patience
    while True:
        load: dict[str, Any] = httpx.get(f"{url}/load").json()
        held = [
            load["server_load"],
            *(e[k] for e in load["engines"] for k in ("running", "waiting", "kv_cache_usage")),
        ]
        if not any(held):
            break
        if time.monotonic() > deadline:
            return f"still held {patience:g} s after the last request: {load}"
        time.sleep(0.1)
    (model, *_) = httpx.get(f"{url}/v1/models").json()["data"]
    if model["task"] == "generate":
        good = httpx.post(f"{url}/v1/completions", json={"prompt": "Who", "max_tokens": 2}, timeout=30)
    else:
        good = httpx.post(f"{url}/pooling", json={"input": "Who"}, timeout=30)
    return None if good.status_code == 200 else f"a good request is answered with {good.status_code}: {good.text}"


def schemathesis(url: str, seed: int, examples: int, phases: str = "coverage,fuzzing") -> int:
    """Run schemathesis and return its exit code. `examples`: of fuzzing, per endpoint."""
    options = {
        "checks": CHECKS,
        "phases": phases,
        "max-examples": str(examples),
        "seed": str(seed),
        "request-timeout": "30",
        "suppress-health-check": "all",
        "warnings": "off",
        "generation-database": "none",
    }
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json", "--no-color"]
    command += ["--continue-on-failure", *(f"--{name}={value}" for name, value in options.items())]
    with tempfile.TemporaryDirectory() as folder:  # for its notes
        return subprocess.run(command, check=False, cwd=folder).returncode


def run(url: str, args: argparse.Namespace) -> bool:
    """Return whether everything went well."""
    before, well = engines(url), True
    if args.requests:
        numbers = range(args.only, args.only + 1) if args.only is not None else range(args.requests)
        report = asyncio.run(
            fuzz(
                url,
                args.seed,
                numbers,
                connections=args.connections,
                patience=args.patience,
                quiet=False,
                pooling=args.pooling,
            )
        )
        seconds, slowest = report.slowest
        print(
            f"{len(numbers)} malformed requests, seed {args.seed}; number {slowest} took {seconds:.2f} s; statuses:"
        )
        print("  " + ", ".join(f"{status}: {count}" for status, count in sorted(report.statuses.items())))
        print("\n".join(report.failures[:20]) or "no failure")
        well = not report.failures
    if args.examples:
        well &= schemathesis(url, args.seed, args.examples) == 0
    left = left_behind(url)
    print(left or "nothing is left behind")
    after = engines(url)
    if before != after:
        print(f"the engines changed: {before} before, {after} after")
    return well and left is None and before == after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a running service of the demo model [default: start one]")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="of the fuzzer [default: 10000]")
    parser.add_argument(
        "--examples", type=int, default=0, metavar="N", help="of schemathesis, per endpoint [default: 0]"
    )
    parser.add_argument("--pooling", action="store_true", help="send bodies for vectors and scores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="send this request alone")
    parser.add_argument("--connections", type=int, default=16, metavar="N")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="for one request")
    args = parser.parse_args()
    if args.url:
        return 0 if run(args.url.rstrip("/"), args) else 1
    sys.path.insert(0, str(ROOT / "tests"))
    from service.running import running

    with running("serve", "demo://", *SERVE, *(EMBED if args.pooling else ())) as service:
        return 0 if run(service.url, args) else 1


if __name__ == "__main__":
    sys.exit(main())
