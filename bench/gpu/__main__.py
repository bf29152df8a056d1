"""Checks the Triton kernels on a GPU, and measures them and whole models.

    python -m bench.gpu --json gpu.json --commit $(git rev-parse HEAD)
    python -m bench.gpu --only checks,ceilings
    python -m bench.gpu --only tune --json tune.json
    python -m bench.gpu --device cpu --tiny       # a smoke test: Triton's interpreter, figures without a meaning

Nothing is downloaded: models have the shapes of Llama-3.1-8B and Qwen3-0.6B and random weights. The command exits
with 1 if a check or a section has failed. `--list` prints the sections.
"""

import argparse
import importlib.util
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Final

from bench.gpu.results import Results
from bench.gpu.sections import SECTIONS, chosen
from bench.gpu.supervisor import Supervisor
from bench.gpu.worker import Options

_NEEDED: Final = ("torch", "triton", "numpy", "safetensors", "tokenizers", "msgspec", "orjson", "llguidance")
# Most processes that check at the same time: compilation of the kernels takes most of their time.
_JOBS: Final = 12


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes; on a CPU, without any other")
    parser.add_argument("--only", default="", metavar="A,B", help="these sections")
    parser.add_argument("--skip", default="", metavar="A,B", help="not these sections")
    parser.add_argument("--list", action="store_true", help="print the sections and exit")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for all figures, written as they come")
    parser.add_argument("--commit", default="", help="of the code, for the file")
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of all sections together")
    parser.add_argument("--jobs", type=int, default=max(1, min(_JOBS, (os.cpu_count() or 1) * 3 // 4)))
    args = parser.parse_args()
    if args.list:
        print(*(f"{s.name:<32}{s.limit:>5g} s{'' if s.by_default else '  by --only'}" for s in SECTIONS), sep="\n")
        return 0
    try:
        sections = chosen(*([name for name in text.split(",") if name] for text in (args.only, args.skip)))
    except ValueError as error:
        parser.error(str(error))
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        parser.error(f"these packages are missing: {', '.join(missing)}")
    if args.device == "cpu":
        if not args.tiny:
            parser.error("--device cpu needs --tiny: Triton's interpreter is slow")
        os.environ["TRITON_INTERPRET"] = "1"  # read when the workers import triton
    about = {"commit": args.commit, "command": shlex.join(sys.argv), "machine": platform.machine()}
    results = Results(about, args.json)
    supervisor = Supervisor(Options(args.device, args.tiny), results, time.monotonic() + args.seconds)
    supervisor.run(sections, args.jobs)
    results.print_end()
    return 1 if results.has_errors else 0


if __name__ == "__main__":
    sys.exit(main())
