"""`kvasir bench serve|throughput|latency|startup`: the options; kvasir.benchmark does the work."""

import argparse
import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Final

from kvasir.benchmark.figures import (
    PERCENTILES,
    Figures,
    check_json,
    draft_lines,
    load_figures,
    load_lines,
    parse_percentiles,
    write_json,
)
from kvasir.benchmark.workload import OfflineWorkload, Pace, Workload
from kvasir.cli import serve as serve_command
from kvasir.cli.api_client import URL_HELP, add_api_key, base_url, check_text, default_url
from kvasir.config.options import ConfigError, OptionParser, add_options, from_args
from kvasir.config.parsers import argument_type, parse_int
from kvasir.config.sections import add_sections, from_sections
from kvasir.config.settings import EngineConfig
from kvasir.config.tls_settings import TlsConfig
from kvasir.config.variables import unknown_variables
from kvasir.executor.torchrun.launched_rank import shows_results
from kvasir.process.progress import progress_bar
from kvasir_contract.endpoints import HTTP_PORT
from kvasir_contract.logs import setup_logging
from kvasir_contract.units import parse_duration

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[OptionParser]


_SECTIONS: Final = ("model", "device", "cache", "scheduler", "executor")


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir bench",
        usage="kvasir bench WHAT …",
        description="Measure a server, an engine or a start-up.",
        epilog="`kvasir bench WHAT --help` lists its options.",
    )
    result.set_defaults(measure=lambda args: _show_help(result))
    commands = result.add_subparsers(
        title="what to measure", metavar="WHAT", parser_class=OptionParser, prog="kvasir bench"
    )
    _add_serve(commands)
    _add_throughput(commands)
    _add_latency(commands)
    _add_startup(commands)
    return result


def run(args: argparse.Namespace) -> int:
    if getattr(args, "json", None) is not None:
        check_json(args.json)
    return int(args.measure(args))


def _show_help(parser: OptionParser) -> int:
    parser.print_help()
    return 0


def _add_serve(commands: "Commands") -> None:
    parser = commands.add_parser(
        "serve",
        help="put load on a server of the OpenAI API",
        usage="kvasir bench serve [URL] [option …]",
        description="Send requests to any server of the OpenAI API and time its answers: TTFT (time to first "
        "token), TPOT (time per token after it), ITL (time between two chunks) and end to end. The exit code is 1 "
        "if a request failed.",
    )
    parser.set_defaults(measure=_serve)
    parser.add_argument("url", metavar="URL", nargs="?", default=default_url(), help=URL_HELP)
    parser.add_argument("--base-url", metavar="URL", help="the same")
    parser.add_argument("--host", metavar="HOST", help="host of the server, instead of URL")
    parser.add_argument(
        "--port",
        type=argument_type(parse_int(1, 65535)),
        default=HTTP_PORT,
        metavar="N",
        help="its port, with --host",
    )
    parser.add_argument(
        "--dataset-name",
        choices=("random", "sharegpt", "custom"),
        help="kind of the prompts: random, or those of --prompts",
    )
    add_options(parser, Workload, "requests")
    add_options(parser, Pace, "pace")
    parser.add_argument(
        "--percentiles",
        "--metric-percentiles",
        type=argument_type(parse_percentiles),
        default=PERCENTILES,
        metavar="LIST",
        help="percentiles to show [default: 50,90,99]",
    )
    parser.add_argument("--percentile-metrics", metavar="LIST", help="no effect: all times are shown")
    add_api_key(parser)
    _add_json(parser)


def _serve(args: argparse.Namespace) -> int:
    import uvloop

    from kvasir.benchmark.load_generator import measure

    check_text(args)
    workload, pace = from_args(Workload, args, environ={}), from_args(Pace, args, environ={})
    if args.dataset_name not in (None, "random") and workload.prompts is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs a file: give --prompts FILE")
    url = base_url(args.base_url or (f"{args.host}:{args.port}" if args.host else args.url))
    with progress_bar("requests") as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        measured = runner.run(measure(url, args.api_key, workload, pace, progress))
    if measured.interrupted and not measured.outcomes:
        raise KeyboardInterrupt
    figures = {
        "url": url,
        "model": measured.model,
        "interrupted": measured.interrupted,
        **load_figures(measured.outcomes, measured.seconds, args.percentiles),
        "speculative_decoding": measured.drafts,
    }
    if measured.interrupted:
        print("interrupted: the figures cover the requests that had ended")
    lines = load_lines(figures) + (draft_lines(measured.drafts) if measured.drafts else [])
    _show(figures, lines, args.json)
    for message in sorted({outcome.error for outcome in measured.outcomes if outcome.error}):
        print(f"failed: {message}", file=sys.stderr)
    if measured.interrupted:
        raise KeyboardInterrupt
    return 1 if figures["failed"] else 0


def _add_throughput(commands: "Commands") -> None:
    parser = commands.add_parser(
        "throughput",
        help="tokens per second of an engine in this process, with all requests submitted at once",
        usage="kvasir bench throughput MODEL [option …]",
        description="Load a model into this process and generate from random prompts at full speed: no HTTP, no "
        "tokenizer, no other process.",
    )
    parser.set_defaults(measure=_throughput)
    parser.add_argument(
        "--requests",
        "--num-prompts",
        type=argument_type(parse_int(1)),
        default=64,
        metavar="N",
        help="requests to submit [default: 64]",
    )
    _add_engine(parser)


def _throughput(args: argparse.Namespace) -> int:
    from kvasir.benchmark.offline import measure_throughput

    setup_logging("bench", "warning")
    config = _engine_of(args)
    shown = shows_results(config.executor)
    measured = measure_throughput(config, from_args(OfflineWorkload, args, environ={}), args.requests)
    if shown:
        _show(measured.figures, measured.lines, args.json)
    return 0


def _add_latency(commands: "Commands") -> None:
    parser = commands.add_parser(
        "latency",
        help="time of one batch in an engine in this process",
        usage="kvasir bench latency MODEL [option …]",
        description="Load a model into this process and time batches of random prompts, one batch after the other: "
        "no HTTP, no tokenizer, no other process.",
    )
    parser.set_defaults(measure=_latency)
    number = argument_type(parse_int(1))
    parser.add_argument(
        "--batch-size", type=number, default=1, metavar="N", help="requests in a batch [default: 1]"
    )
    parser.add_argument(
        "--iterations", "--num-iters", type=number, default=10, metavar="N", help="batches to time [default: 10]"
    )
    parser.add_argument(
        "--warmup",
        "--num-iters-warmup",
        type=argument_type(parse_int(0)),
        default=1,
        metavar="N",
        help="batches before those that are timed [default: 1]",
    )
    _add_engine(parser)


def _latency(args: argparse.Namespace) -> int:
    from kvasir.benchmark.offline import measure_latency

    setup_logging("bench", "warning")
    config, workload = _engine_of(args), from_args(OfflineWorkload, args, environ={})
    shown = shows_results(config.executor)
    measured = measure_latency(config, workload, args.batch_size, args.iterations, args.warmup)
    if shown:
        _show(measured.figures, measured.lines, args.json)
    return 0


def _add_engine(parser: OptionParser) -> None:
    parser.takes_vllm = True
    parser.add_argument(
        "model", metavar="MODEL", help="hf://org/name[@revision], a directory, a GGUF file, or demo://"
    )
    add_options(parser, OfflineWorkload, "requests")
    add_sections(parser, EngineConfig, _SECTIONS, without=("served_model_name", "seed"))
    _add_json(parser)


def _engine_of(args: argparse.Namespace) -> EngineConfig:
    _warn(args)
    model = {"source": args.model, "served_model_name": (), "seed": None}
    return from_sections(EngineConfig, args, _SECTIONS, model=model)


def _add_startup(commands: "Commands") -> None:
    parser = commands.add_parser(
        "startup",
        help="time and memory of `kvasir serve` from spawn to first token",
        usage="kvasir bench startup MODEL [option …]",
        description="Start `kvasir serve` with these options on a free port, request a token and stop it, "
        "several times.",
    )
    parser.set_defaults(measure=_startup)
    parser.add_argument(
        "--repeat", type=argument_type(parse_int(1)), default=3, metavar="N", help="number of starts [default: 3]"
    )
    parser.add_argument(
        "--limit",
        type=argument_type(parse_duration),
        default=600.0,
        metavar="TIME",
        help="maximum time of a start [default: 600s]",
    )
    serve_command.add_serve_options(parser, without=("host", "port"))
    _add_json(parser)


def _startup(args: argparse.Namespace) -> int:
    from kvasir.benchmark.startup import measure_startups, startup_figures, startup_lines

    given = serve_command.settings_of(args)
    _warn(args)
    serve_command.check_settings(given)
    server = dataclasses.replace(given.server, host="127.0.0.1", port=0, uds=None)
    settings = dataclasses.replace(given, server=server, tls=TlsConfig())
    argv, env = serve_command.argv_of(settings), serve_command.environment_of(settings)
    key = server.api_key[0] if server.api_key else None
    figures = startup_figures(measure_startups(argv, env, key, args.repeat, args.limit))
    _show(figures, startup_lines(figures), args.json)
    return 0


def _warn(args: argparse.Namespace) -> None:
    for text in (*args.notes, *unknown_variables()):
        print(f"kvasir bench: warning: {text}", file=sys.stderr)


def _add_json(parser: OptionParser) -> None:
    parser.add_argument(
        "--json", "--output-json", "--result-filename", metavar="FILE", help="also write the figures to this file"
    )


def _show(figures: Figures, lines: list[str], file: str | None) -> None:
    print("\n".join(lines))
    if file is not None:
        write_json(file, figures)
