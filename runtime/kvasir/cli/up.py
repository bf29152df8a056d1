"""`kvasir up MANIFEST`: a manifest's InferenceServices, run on this machine from the operator's pod templates."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from kvasir.config.options import OptionParser, argument_type, parse_int
from kvasir.local.manifests.manifest import read_manifest
from kvasir.local.prepare import LAST_PORT, prepare_services
from kvasir.local.run import run_services
from kvasir_contract.endpoints import ANY_HOST, HTTP_PORT


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir up",
        usage="kvasir up MANIFEST [option …]",
        description="Run the InferenceServices of a manifest on this machine, as local processes, until Ctrl-C. "
        "They are checked by the same schema and run the same commands as in a cluster.",
    )
    result.add_argument(
        "manifest", metavar="MANIFEST", type=Path, help="YAML file with InferenceServices and the Secrets they name"
    )
    result.add_argument(
        "--host", default="127.0.0.1", help=f"address to listen on; {ANY_HOST} for all [default: %(default)s]"
    )
    result.add_argument(
        "--port",
        type=argument_type(parse_int(0, LAST_PORT)),
        default=HTTP_PORT,
        metavar="N",
        help="port of the first service, the next ones follow; 0 takes any free ones [default: %(default)s]",
    )
    return result


def run(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        run_services(prepare_services(stack, read_manifest(args.manifest), args.host, args.port))
    return 0
