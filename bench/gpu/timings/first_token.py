"""A process that starts an engine, computes one token and prints the seconds of each phase as JSON; see startup.py.

python -m bench.gpu.timings.first_token FOLDER cuda --spawned TIME
"""

import argparse
import json
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--spawned", type=float, required=True, help="by time.time()")
    args = parser.parse_args()
    python = time.time()
    from bench.gpu.engines import engine_config, greedy, start  # here, because the import is a phase

    imported = time.time()
    config = engine_config(
        args.folder,
        device=args.device,
        cache_bytes=2**24 if args.tiny else None,
        max_model_len=256 if args.tiny else 8192,
        load_format="safetensors",
    )
    engine = start(config)
    started = time.time()
    engine.add("first", [2] * 16, greedy(1))
    engine.finish()
    ended = time.time()
    phases = {
        "python": python - args.spawned,
        "imports": imported - python,
        **engine.executor.starting,
        "start in all": started - imported,
        "first token": ended - started,
        "from spawn to token": ended - args.spawned,
    }
    engine.close()
    print(json.dumps(phases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
