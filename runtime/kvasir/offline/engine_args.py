"""Options of an `LLM` on the command line, as in vLLM."""

import argparse
import logging
import sys
from types import SimpleNamespace
from typing import Any, Self

from kvasir.config.options import OptionParser, add_options
from kvasir.config.sections import add_sections
from kvasir.config.settings import EngineConfig, ModelConfig
from kvasir.offline.engine_options import NOT_OF_THE_MODEL

log = logging.getLogger(__name__)


class EngineArgs(SimpleNamespace):
    """The arguments of an `LLM`: `LLM(**vars(EngineArgs(model=...)))`."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model=model, **options)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        group = parser.add_argument_group("model")
        group.add_argument("--model", default="demo://", help="model to load [default: demo://]")
        group.add_argument("--revision", default=None, help="revision of the model on the hub")
        group.add_argument("--tokenizer-revision", default=None, help="revision of --tokenizer")
        add_options(parser, ModelConfig, "model's options", without=NOT_OF_THE_MODEL)
        add_sections(parser, EngineConfig, ("device", "cache", "scheduler", "executor", "lora"))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the arguments that are set, without the program's own."""
        parser = cls.add_cli_args(argparse.ArgumentParser(add_help=False))
        names = {action.dest for action in parser._actions}
        return cls(**{name: value for name, value in vars(args).items() if name in names and value is not None})


class AsyncEngineArgs(EngineArgs):
    """The arguments of an `AsyncLLM`."""


class FlexibleArgumentParser(OptionParser):
    """Reads options as `vllm serve` does, and logs those of vLLM that change nothing."""

    takes_vllm = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(sys.argv[1:] if args is None else args, namespace)
        for note in vars(parsed).pop("notes", ()):
            log.warning("%s", note)
        return parsed, rest
