"""`kvasir frontend MODEL`: one API server; the command of a frontend pod."""

import argparse
import logging
import os

from kvasir.config.frontend_settings import FrontendConfig
from kvasir.config.options import ConfigError, OptionParser
from kvasir.config.sections import add_sections, from_sections
from kvasir.config.variables import refuse_unmanaged_variables, unknown_variables
from kvasir_contract.endpoints import LINK_PORT
from kvasir_contract.environment import MANAGED_VARIABLES
from kvasir_contract.exits import ExitCode
from kvasir_contract.logs import setup_logging


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir frontend",
        usage="kvasir frontend MODEL [option …]",
        description="Run one API server: OpenAI's HTTP API, tokenizer, routing. Engines connect to it at --link. "
        "Every option can also be given as an environment variable: --max-model-len as KVASIR_MAX_MODEL_LEN.",
    )
    result.set_defaults(notes=[])
    result.takes_vllm = MANAGED_VARIABLES not in os.environ  # the rules of extraArgs know no other names of options
    result.add_argument(
        "model", metavar="MODEL", help="hf://org/name[@revision], a directory, a GGUF file, or demo://"
    )
    result.add_argument(
        "--fetch-only",
        action="store_true",
        help="download config and tokenizer, and exit; a server with HF_HUB_OFFLINE=1 then needs no HF_TOKEN",
    )
    add_sections(result, FrontendConfig)
    return result


def config_of(args: argparse.Namespace) -> FrontendConfig:
    return from_sections(FrontendConfig, args, model={"source": args.model})


def run(args: argparse.Namespace) -> int:
    refuse_unmanaged_variables()
    config = config_of(args)
    if len(config.link.link) != 1:
        raise ConfigError(
            f"a frontend needs one --link address to bind, for example tcp://*:{LINK_PORT}; to serve a model on "
            "this machine, use `kvasir serve MODEL`"
        )
    setup_logging("frontend", config.process.log_level, config.process.log_format)
    for text in (*args.notes, *unknown_variables()):
        logging.getLogger(__name__).warning(text)
    if args.fetch_only:
        from kvasir.hub.located_model import read_model

        read_model(config.model)
        return ExitCode.OK
    from kvasir.frontend.server import run_frontend

    return run_frontend(config)
