"""Vectors of 16-token texts on this machine's CPU: Kvasir next to sentence-transformers, alternating in one run.

    python -m bench.embeddings DIR             # of a model with the files of sentence-transformers
    python -m bench.embeddings DIR --threads 2 --rounds 5

Installs sentence-transformers below --cache the first time. Each measurement is a process of its own. Of a machine
that serves others, only texts per second of CPU time carry over. `requests` are those of a running service, one
text each, over 16 connections.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
from bench.running import free_port

PACKAGES: Final = (
    *("sentence-transformers>=6,<7", "scikit-learn", "scipy", "joblib", "cloudpickle", "threadpoolctl", "narwhals"),
)
TEXT: Final = "the weather is lovely today and many people walk through a green park near town"
CONNECTIONS: Final = 16
START_SECONDS: Final = 120.0


def texts(count: int) -> list[str]:
    words = TEXT.split()
    return [" ".join(words[(start + place) % len(words)] for place in range(14)) for start in range(count)]


def timed(encode: Callable[[list[str]], object], args: argparse.Namespace) -> dict[str, float]:
    encode(texts(64))
    start, cpu = time.perf_counter(), _cpu_seconds()
    encode(texts(args.texts))
    return {"seconds": time.perf_counter() - start, "cpu_seconds": _cpu_seconds() - cpu}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sentence_transformers(args: argparse.Namespace) -> dict[str, float]:
    sys.path.append(str(packages(args)))
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(args.threads)
    model = SentenceTransformer(args.model, device="cpu", local_files_only=True)
    return timed(lambda some: model.encode(some, batch_size=32, show_progress_bar=False), args)


def kvasir(args: argparse.Namespace) -> dict[str, float]:
    from kvasir import LLM

    with LLM(args.model, threads=args.threads) as llm:
        return timed(lambda some: llm.embed(some, use_tqdm=False), args)


def requests(args: argparse.Namespace) -> dict[str, float]:
    port = free_port()
    options = ["--port", str(port), "--threads", str(args.threads), "--served-model-name", "m"]
    command = [sys.executable, "-m", "kvasir.cli.main", "serve", args.model, *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_ready(f"http://127.0.0.1:{port}"))
        start = time.perf_counter()
        asyncio.run(_send(f"http://127.0.0.1:{port}", texts(args.texts)))
        seconds = time.perf_counter() - start
    finally:
        server.terminate()
        server.wait()
    return {"seconds": seconds}


async def _ready(url: str) -> None:
    async with httpx.AsyncClient() as client:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                if (await client.get(f"{url}/health")).status_code == 200:
                    return await _send(url, texts(64))
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.2)
    raise SystemExit(f"the service is not ready after {START_SECONDS:g} s")


async def _send(url: str, some: list[str]) -> None:
    waiting = iter(some)
    async with httpx.AsyncClient(timeout=START_SECONDS) as client:

        async def connection() -> None:
            for text in waiting:
                body = {"model": "m", "input": text, "encoding_format": "base64"}
                (await client.post(f"{url}/v1/embeddings", json=body)).raise_for_status()

        await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))


MEASURED: Final = {each.__name__: each for each in (sentence_transformers, kvasir, requests)}


def packages(args: argparse.Namespace) -> Path:
    return Path(args.cache).expanduser() / "sentence-transformers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="DIR")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", default="~/.cache/kvasir/bench")
    parser.add_argument("--only", choices=MEASURED, help="measure once in this process, and print JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(MEASURED[args.only](args)))
        return 0
    if not packages(args).exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages(args))]
        subprocess.run([*install, *PACKAGES], check=True)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(args.rounds):
        for name in MEASURED:
            command = [sys.executable, "-m", "bench.embeddings", *sys.argv[1:], "--only", name]
            environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
            output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            found[name].append(json.loads(output.splitlines()[-1]))
    print_medians(found, args.texts)
    return 0


def print_medians(found: dict[str, list[dict[str, Any]]], count: int) -> None:
    for name, rounds in found.items():
        rate = statistics.median(count / each["seconds"] for each in rounds)
        of_cpu = [count / each["cpu_seconds"] for each in rounds if "cpu_seconds" in each]
        more = f", {statistics.median(of_cpu):.0f} for each second of CPU time" if of_cpu else ""
        print(f"{name}: {rate:.0f} texts/s{more}")
    pairs = zip(found["kvasir"], found["sentence_transformers"], strict=True)
    shares = [other["cpu_seconds"] / own["cpu_seconds"] for own, other in pairs]
    print(f"kvasir / sentence_transformers, by CPU time: {statistics.median(shares):.2f}")


if __name__ == "__main__":
    sys.exit(main())
