"""Kvasir next to other servers on this machine's CPU: same weights, same load, alternating in one run.

    python -m bench.compare                                       # kvasir and vllm, three rounds
    python -m bench.compare --peers kvasir,vllm,llama.cpp --rounds 5 --loads 1-stream,16-streams
    python -m bench.compare --peers kvasir --before ../earlier  # with the code of an earlier commit
    python -m bench.compare --loads 32-streams,32-schemas  # structured output: as many JSON Schemas as streams

Installs the peers (see peers.py) below --cache the first time: vLLM takes 6 GB and three minutes. In each round
every server is started alone, put under load and ended. Medians over the rounds are printed, Kvasir's share of each
peer's, and the machine's own bounds; machines that serve others are noisy, so only the ratios carry over.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from bench.peers import PEERS, CannotInstall, Peer, earlier_checkout, installed
from bench.running import Load, Server, ServerFailed, free_port, running

HERE = Path(__file__).parent
# Options of make_llama.py.
MODELS = {
    "126m": [],
    "1m": ["--hidden", "128", "--layers", "2", "--heads", "4", "--mlp", "256", "--vocab", "4096"],
    "text-32768": ["--vocab", "32768", "--train-tokenizer"],
}
# Memory is compared with this model.
LARGER = "126m"
LOADS = {
    load.name: load
    for load in (
        Load("1-stream", "126m", 1, 128, 128, 6, "output_tokens_per_second"),
        Load("16-streams", "126m", 16, 128, 128, 48, "output_tokens_per_second"),
        Load("front-1-token", "1m", 64, 8, 1, 2000, "requests_per_second"),
        Load("front-64-tokens", "1m", 64, 8, 64, 640, "output_tokens_per_second"),
        Load("32-streams", "text-32768", 32, 32, 128, 96, "output_tokens_per_second", temperature=1),
        Load("32-schemas", "text-32768", 32, 32, 128, 96, "output_tokens_per_second", temperature=1, schemas=32),
    )
}
USUAL: Final = [name for name, load in LOADS.items() if load.model != "text-32768"]
UNITS = {"output_tokens_per_second": "tok/s", "requests_per_second": "req/s"}

# Values per round, by figure and name of the peer.
Samples = dict[tuple[str, str], list[float]]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # by way of the servers' ends
    args = arguments()
    cache = Path(args.cache).expanduser()
    loads = [LOADS[name] for name in args.loads]
    environments = install(args.peers, cache)
    if args.before:
        environments[args.before] = cache  # it has no environment of its own
    models = {name: model(name, cache) for name in dict.fromkeys(load.model for load in loads)}
    samples: Samples = defaultdict(list)
    lost: set[tuple[str, str]] = set()
    for number in range(args.rounds):
        for name in models:
            for peer in turns(list(environments), number):
                if (peer.name, name) in lost:
                    continue
                print(f"round {number + 1} of {args.rounds}: {peer.name}, model {name}", flush=True)
                try:
                    measure(peer, environments[peer], models[name], name, loads, number, samples)
                except ServerFailed as error:
                    print(f"{peer.name}: {error}", file=sys.stderr)
                    lost.add((peer.name, name))
    subprocess.run([sys.executable, HERE / "bounds.py"], check=True)
    show(samples, [peer.name for peer in environments], args.rounds)
    if args.json:
        figures: dict[str, dict[str, list[float]]] = {what: {} for what, _ in samples}
        for (what, name), values in samples.items():
            figures[what][name] = values
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if lost else 0


def install(names: list[str], cache: Path) -> dict[Peer, Path]:
    # Leaves out peers that cannot be installed here.
    environments = {}
    for name in names:
        try:
            environments[PEERS[name]] = installed(PEERS[name], cache)
        except CannotInstall as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return environments


def model(name: str, cache: Path) -> Path:
    folder = cache / "models" / name
    if not (folder / "model.safetensors").exists():
        subprocess.run([sys.executable, HERE / "make_llama.py", folder, *MODELS[name]], check=True)
    return folder


def turns(peers: list[Peer], number: int) -> list[Peer]:
    """Reverse the order in every second round, so that no peer always finds the machine warm."""
    return peers if number % 2 == 0 else peers[::-1]


def measure(
    peer: Peer, env: Path, folder: Path, name: str, loads: list[Load], number: int, samples: Samples
) -> None:
    # All loads for this model. Raises ServerFailed.
    port = free_port()
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    command = peer.command(env, folder, port)
    named = None if peer.lists_models else str(folder)
    with running(command, peer.environ(env), port, peer.endpoint, peer.load_options, named) as server:
        samples["start-up, s", peer.name].append(server.start_up)
        for load in loads:
            if load.model == name:
                under_load(server, peer.name, load, vocabulary, number, samples)
        if name == LARGER:
            samples["peak memory, MiB", peer.name].append(server.peak_memory() / 2**20)


def under_load(server: Server, peer: str, load: Load, vocabulary: int, number: int, samples: Samples) -> None:
    figures = server.measure(load, vocabulary, seed=1 + number * len(LOADS) + list(LOADS).index(load.name))
    samples[f"{load.name}, {UNITS[load.figure]}", peer].append(figures[load.figure])
    for key, label in (("ttft_ms", "TTFT ms"), ("tpot_ms", "TPOT ms")):
        if figures[key] is not None:
            samples[f"{load.name}, {label}", peer].append(figures[key]["p50"])
    print(f"  {load.name}: {figures[load.figure]:.1f} {UNITS[load.figure]}", flush=True)


def show(samples: Samples, names: list[str], rounds: int) -> None:
    print(
        f"\nmedians of {rounds} rounds (lowest to highest); in the last columns Kvasir's as a multiple of a peer's"
    )
    others = [name for name in names if name != "kvasir"]
    print(f"{'':<28}" + "".join(f"{name:>26}" for name in names) + "".join(f"{'/ ' + name:>16}" for name in others))
    for what in dict.fromkeys(what for what, _ in samples):
        cells = "".join(f"{cell(samples.get((what, name), [])):>26}" for name in names)
        print(f"{what:<28}{cells}" + "".join(f"{ratio(samples, what, name):>16}" for name in others))


def cell(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def ratio(samples: dict[tuple[str, str], Any], what: str, peer: str) -> str:
    ours, theirs = samples.get((what, "kvasir")), samples.get((what, peer))
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}" if ours and theirs else "-"


def names_of(known: dict[str, Any], what: str) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {what} {unknown[0]!r}: there are {', '.join(known)}")
        return names

    return parse


def checkout(text: str) -> Peer:
    try:
        return earlier_checkout(Path(text))
    except CannotInstall as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "kvasir/bench"
    parser.add_argument("--peers", type=names_of(PEERS, "peer"), default="kvasir,vllm", help=", ".join(PEERS))
    parser.add_argument("--loads", type=names_of(LOADS, "load"), default=",".join(USUAL), help=", ".join(LOADS))
    parser.add_argument(
        "--before", type=checkout, metavar="DIR", help="a checkout of an earlier commit to compare with"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", default=str(cache), help="where environments and models are kept [%(default)s]")
    parser.add_argument("--json", metavar="FILE", help="write every round's figures here too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
