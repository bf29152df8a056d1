"""`kvasir run-batch -i INPUT -o OUTPUT`: answer a file of requests, with a service of its own or a running one."""

import argparse
import asyncio
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvasir.batch import batch_input
from kvasir.batch.batch_input import Survey
from kvasir.batch.batch_output import AnswerFile
from kvasir.batch.batch_run import BatchOptions, BatchRun
from kvasir.batch.delivery import Patience
from kvasir.cli import serve as serve_command
from kvasir.cli.api_client import add_api_key, base_url
from kvasir.config.options import ConfigError, OptionParser, flag_of, is_given, names_of
from kvasir.config.parsers import argument_type, parse_int
from kvasir.config.sections import sections_of
from kvasir.config.tls_settings import TlsConfig
from kvasir.config.variables import unknown_variables
from kvasir.local.place import LOOPBACK, open_place
from kvasir.local.run import LocalService, run_job
from kvasir.process.progress import progress_bar
from kvasir.process.words import count
from kvasir_contract.units import parse_duration

# Of further lines only the number is printed.
SHOWN_LINES: Final = 100
_SET_HERE: Final = ("host", "port", "api_key", "api_key_dir")


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir run-batch",
        usage="kvasir run-batch -i INPUT -o OUTPUT (--model MODEL | --url URL) [option …]",
        description="Answer the requests of a file in OpenAI's batch format: a JSON object per line, with "
        "custom_id, method, url and body. Started again, the command keeps the good answers in OUTPUT and "
        "sends the other requests. Exit codes: 0 every request has a good answer, 1 a line is not a request, was "
        "not answered or has an error status, 2 a mistake in the options, 130 stopped by Ctrl-C.",
    )
    batch = result.add_argument_group("batch")
    batch.add_argument(
        "-i", "--input-file", type=Path, required=True, metavar="INPUT", help="file with the requests"
    )
    batch.add_argument(
        "-o", "--output-file", type=Path, required=True, metavar="OUTPUT", help="file for the answers"
    )
    batch.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="serve this model for the batch, as `kvasir serve` does; --model MODEL is the same",
    )
    batch.add_argument("--url", metavar="URL", help="use the server at this URL, and start none")
    number, duration = argument_type(parse_int(1, 4096)), argument_type(parse_duration)
    batch.add_argument(
        "--concurrency", type=number, default=128, metavar="N", help="requests in flight [default: %(default)s]"
    )
    batch.add_argument(
        "--retry-for",
        type=duration,
        default=600.0,
        metavar="TIME",
        help="repeat a request for this long while the server is busy or unreachable [default: 10m]",
    )
    batch.add_argument(
        "--request-timeout",
        type=duration,
        default=3600.0,
        metavar="TIME",
        help="time limit of an answer [default: 1h]",
    )
    batch.add_argument(
        "--retry-errors",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="send requests again whose answer in OUTPUT has an error status [default: on]",
    )
    add_api_key(result)
    serve_command.add_service_options(result, without=_SET_HERE)
    return result


def run(args: argparse.Namespace) -> int:
    _check(args)
    with AnswerFile(args.output_file) as output:
        report = _Report(args.input_file)
        found = _survey(args, output, report)
        if not found.requests:
            print(f"no line of {args.input_file} is a request: correct the lines and start the command again")
            return report.exit_code
        if found.requests == found.answered:
            errors = f", {len(found.failed)} of them with an error status" if found.failed else ""
            print(f"all {found.requests} requests have an answer in {args.output_file} already{errors}")
            return 1 if found.failed else report.exit_code
        options = BatchOptions(args.concurrency, Patience(args.retry_for), args.request_timeout)
        with progress_bar("requests") as progress:
            progress(found.answered, found.requests)  # a model may load first
            batch = BatchRun(args.input_file, found, output, options, report.line, progress)
            try:
                _send(args, batch)
            finally:
                _summarize(args, found, batch)
        return 1 if found.failed else report.exit_code


def _check(args: argparse.Namespace) -> None:
    if (args.model is None) == (args.url is None):
        raise ConfigError("give either --model, to serve a model for this batch, or --url of a running server")
    if args.url is not None:
        given = [name for name in _service_options() if is_given(name, args, environ={})]
        if given:
            raise ConfigError(
                f"{flag_of(given[0])} is for a service that this command starts: leave it out with --url"
            )
    if args.input_file.exists() and args.output_file.exists() and args.input_file.samefile(args.output_file):
        raise ConfigError("--input-file and --output-file are the same file: choose another --output-file")


def _service_options() -> list[str]:
    return [
        name
        for config in sections_of(serve_command.ServeSettings).values()
        for name in names_of(config)
        if name not in _SET_HERE
    ]


def _survey(args: argparse.Namespace, output: AnswerFile, report: "_Report") -> Survey:
    path, served = args.input_file, () if args.url is not None else _names(args)
    try:
        found = batch_input.survey(path, output.answered, report.line, failed=output.failed, served=served)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if not found.requests and not found.bad_lines:
        raise ConfigError(f"{path} holds no requests")
    if args.retry_errors and found.failed:
        output.replace(found.failed)
        found.answered -= len(found.failed)
        found.failed = set()
    return found


def _names(args: argparse.Namespace) -> tuple[str, ...]:
    settings = serve_command.settings_of(args)
    adapters = [module.name for module in settings.adapters.modules]
    return (*(settings.model.served_model_name or (settings.model.source,)), *adapters)


def _send(args: argparse.Namespace, batch: BatchRun) -> None:
    if args.url is not None:
        asyncio.run(batch.run(base_url(args.url), args.api_key))
        return
    for text in (*args.notes, *unknown_variables()):
        print(f"kvasir run-batch: warning: {text}", file=sys.stderr)
    settings, key = serve_command.settings_of(args), secrets.token_urlsafe(32)
    server = replace(settings.server, host=LOOPBACK, port=0, uds=None, api_key=(key,), api_key_dir=None)
    # Only this command uses the service: without TLS, and by one frontend.
    settings = replace(settings, server=replace(server, api_server_count=1), tls=TlsConfig())
    model = settings.model
    use = serve_command.check_settings(settings)
    place = open_place(
        f"batch-{serve_command.name_of(model.source)}",
        host=LOOPBACK,
        port=0,
        frontends=1,
        engines=settings.serve.data_parallel_size,
        gpus=serve_command.gpus_of(settings),
    )
    try:
        name = _names(args)[0]
        processes = serve_command.processes_of(settings, place)
        run_job(
            LocalService(place, processes, name, use, needs_key=True),
            lambda url: batch.run(url, key, by_proxy=False),
        )
    finally:
        place.close()


def _summarize(args: argparse.Namespace, found: Survey, batch: BatchRun) -> None:
    figures = batch.figures
    answered = found.answered + figures.answered
    parts = [f"{answered} of {found.requests} requests are answered in {args.output_file}"]
    if found.answered:
        parts.append(f"{found.answered} of them by an earlier run")
    if errors := figures.failed + len(found.failed):
        parts.append(f"{errors} with an error status")
    if figures.unsent:
        parts.append(f"{figures.unsent} not answered")
    if bad := len(found.bad_lines):
        parts.append(f"{count(bad, 'line')} of the input {'is' if bad == 1 else 'are'} not sent")
    print(", ".join(parts))
    if answered < found.requests or found.bad_lines or figures.failed:
        first = "Correct the lines that are not requests; " if found.bad_lines else ""
        rest = "sends requests with an error status again" if figures.failed else "sends the rest"
        print(f"{first}{'t' if first else 'T'}he same command {rest}.")


class _Report:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    @property
    def exit_code(self) -> int:
        return 1 if self._count else 0

    def line(self, number: int, reason: str) -> None:
        self._count += 1
        if self._count <= SHOWN_LINES:
            print(f"kvasir run-batch: {self._path}, line {number}: {reason}", file=sys.stderr)
        elif self._count == SHOWN_LINES + 1:
            print("kvasir run-batch: further lines without a good answer are not named", file=sys.stderr)
