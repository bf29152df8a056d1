"""`kvasir collect-env`: versions, machine, GPUs, cluster and settings, for a bug report."""

import argparse
import json

from kvasir.config.options import OptionParser
from kvasir.process.environment_report import describe_environment


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir collect-env",
        usage="kvasir collect-env [--json]",
        description="Describe this machine and installation: versions, CPU, memory, GPUs, the cluster that kubectl "
        "uses, and settings from the environment. Values of keys and tokens are not shown.",
    )
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def run(args: argparse.Namespace) -> int:
    sections = describe_environment()
    if args.json:
        print(json.dumps(sections, indent=2, ensure_ascii=False))
        return 0
    for title, values in sections.items():
        print(title)
        width = max(map(len, values), default=0)
        for name, value in values.items():
            print(f"  {name:<{width}}  {', '.join(value) or 'none' if isinstance(value, list) else value}")
    return 0
