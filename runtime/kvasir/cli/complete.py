"""`kvasir complete TARGET [PROMPT]`: continue a text with a served model."""

import argparse
import json
import sys
from typing import Any

from kvasir.cli.api_client import (
    DEFAULT_URL,
    ApiServer,
    add_request_options,
    add_server_options,
    base_url,
    check_text,
    default_url,
    looks_like_url,
    parts,
    read_input,
    request_fields,
)
from kvasir.config.options import ConfigError, OptionParser
from kvasir.config.parsers import argument_type, parse_int


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir complete",
        usage="kvasir complete TARGET [PROMPT] [option …]",
        description="Continue a text with a served model. The continuation is streamed to standard output. "
        "Exit codes: 0 done, 1 the server is unreachable or failed, 2 the request was rejected.",
    )
    result.add_argument(
        "target",
        metavar="TARGET",
        help=f"URL of a server, or the name of a model on the server at KVASIR_URL [default: {DEFAULT_URL}]",
    )
    result.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="text to continue [default: standard input without its last line break]",
    )
    add_request_options(result)
    result.add_argument(
        "-n", type=argument_type(parse_int(1)), default=1, metavar="N", help="number of continuations [default: 1]"
    )
    result.add_argument(
        "--json", action="store_true", help="print the whole answer of the server as JSON when it is complete"
    )
    add_server_options(result)
    return result


def run(args: argparse.Namespace) -> int:
    check_text(args)
    prompt = _prompt(args.prompt)
    is_url = looks_like_url(args.target)
    if not is_url and args.model:
        raise ConfigError(
            f"both {args.target} and --model {args.model} name a model: give one model, or a URL and --model"
        )
    with ApiServer(base_url(args.target if is_url else default_url()), args.api_key) as server:
        model = (args.model or server.first_model()) if is_url else args.target
        body: dict[str, Any] = {"model": model, "prompt": prompt, **request_fields(args)}
        if args.n > 1:
            body["n"] = args.n
        if args.json:
            print(json.dumps(server.ask("/v1/completions", body), indent=2, ensure_ascii=False))
        else:
            _print_stream(server, body, args.n)
    return 0


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise ConfigError("the prompt is missing: give it as an argument, or on standard input")
    prompt = read_input().removesuffix("\n") if given is None else given
    if not prompt:
        raise ConfigError("the prompt is empty")
    return prompt


def _print_stream(server: ApiServer, body: dict[str, Any], count: int) -> None:
    # The first continuation as it streams in, then the others, each below a line of dashes.
    texts = [""] * count
    try:
        for event in server.stream("/v1/completions", body):
            for index, text in parts(
                event, lambda choice: (range(count)[choice["index"]], str(choice["text"] or ""))
            ):
                texts[index] += text
                if index == 0:
                    print(text, end="", flush=True)
    finally:
        if texts[0] and not texts[0].endswith("\n"):
            print(flush=True)
    for text in texts[1:]:
        print(f"---\n{text}", end="" if text.endswith("\n") else "\n")
