"""`kvasir up MANIFEST`: run the operator's pod templates for a manifest as local processes."""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from kvasir.config.options import OptionParser
from kvasir.config.parsers import argument_type, parse_int
from kvasir.config.vllm import variables
from kvasir.local.manifests.manifest import read_manifest
from kvasir.local.prepare import LAST_PORT, prepare_services
from kvasir.local.run import run_services
from kvasir_contract.endpoints import ANY_HOST, HTTP_PORT


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir up",
        usage="kvasir up MANIFEST [option …]",
        description="Run the InferenceServices of a manifest as processes on this machine, until Ctrl-C. The "
        "manifest is checked by the same schema, and the processes are those of a cluster's pods.",
    )
    result.add_argument(
        "manifest",
        metavar="MANIFEST",
        type=Path,
        help="YAML file with InferenceServices and the Secrets they name; - is standard input",
    )
    result.add_argument(
        "--host",
        default="127.0.0.1",
        help=f"address to listen on; {ANY_HOST} for all addresses [default: %(default)s]",
    )
    result.add_argument(
        "--port",
        type=argument_type(parse_int(0, LAST_PORT)),
        default=HTTP_PORT,
        metavar="N",
        help="port of the first service, others use the next ports; 0 chooses free ports [default: %(default)s]",
    )
    return result


def run(args: argparse.Namespace) -> int:
    if names := variables.given(os.environ):
        print(f"kvasir up: warning: no effect: {', '.join(names)}; give options in the manifest", file=sys.stderr)
    with ExitStack() as stack:
        run_services(prepare_services(stack, read_manifest(args.manifest), args.host, args.port))
    return 0
