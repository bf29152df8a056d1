"""The `kvasir` command: find the sub-command, import its module and run it.

A sub-command's module has parser() and run(args) → exit code. ConfigError is an error of the user: one line, exit
code 2. CommandFailed, such as an unreachable server: one line, exit code 1. Engines and frontends also report
errors as failures (kvasir_contract.failure).
"""

import argparse
import contextlib
import difflib
import errno
import importlib
import os
import signal
import sys
import traceback
from functools import partial
from typing import Final, Protocol

from kvasir.config.options import CommandFailed, ConfigError, UsageError
from kvasir.config.vllm.config_file import place_in_file
from kvasir.process.failures import FailureError, end, failure_of
from kvasir.version import __version__
from kvasir_contract.exits import ExitCode
from kvasir_contract.extras import install_extra
from kvasir_contract.failure import TERMINATION_MESSAGE_VARIABLE, Failure
from kvasir_contract.process_basics import DELETED, complete_process, directory_exists
from kvasir_contract.reasons import Reason

COMMANDS = {
    "up": "run the InferenceServices of a manifest as processes on this machine",
    "serve": "serve one model on this machine: a frontend and its engines",
    "chat": "chat with a served model in the terminal",
    "complete": "continue a text with a served model",
    "fetch": "download a model into a directory, to serve it from there",
    "fit": "compute the memory of a model and the requests that fit, without starting it",
    "logs": "print the logs of a service on this machine",
    "run-batch": "answer the requests of a file in OpenAI's batch format",
    "bench": "measure a server, an engine or a start-up",
    "chaos": "disturb a running service and compare every answer",
    "collect-env": "describe this machine and installation, for a bug report",
    "completion": "print a completion script for bash, zsh or fish",
    "frontend": "run one API server (the command of a frontend pod)",
    "engine": "run one engine, a data-parallel rank (the command of an engine pod)",
}
PROCESSES: Final = ("frontend", "engine")
# They run in a deleted working directory too.
_WITHOUT_FILES: Final = ("chat", "complete", "collect-env", "completion", "logs")
_OUTPUT_FAILED: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


# Commands of Ollama, docker and others → the same here.
_ELSEWHERE: Final = {
    "run": "kvasir serve MODEL serves a model, and kvasir chat chats with it",
    "pull": "kvasir serve MODEL downloads a model that is missing; kvasir fetch MODEL DIR only downloads it",
    "list": "hf cache ls lists the downloaded models, and GET /v1/models the served ones",
    "ls": "hf cache ls lists the downloaded models, and GET /v1/models the served ones",
    "rm": "hf cache rm removes a downloaded model",
    "log": "kvasir logs prints the logs of a service on this machine",
    "ps": "kvasir serve and kvasir up show their processes; GET /health of a server shows its engines",
    "stop": "Ctrl-C ends kvasir serve and kvasir up",
}


class Command(Protocol):
    """The module of a sub-command."""

    def parser(self) -> argparse.ArgumentParser: ...

    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: list[str] | None = None) -> int:
    complete_process()
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # an error at the interpreter's exit would print a traceback
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        if error.errno not in _OUTPUT_FAILED or error.filename is not None:
            raise
        _drop_output()
        with contextlib.suppress(OSError):
            print(f"kvasir: cannot write the output: {error.strerror}", file=sys.stderr)
        return ExitCode.FAILED


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return ExitCode.OK
    if argv[0] in ("-V", "--version", "version"):
        print(f"kvasir {__version__}")
        return ExitCode.OK
    if argv[0].startswith("--help="):
        return _run([argv[0].removeprefix("--help="), "--help"])
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        print(f"kvasir: unknown command {name!r}; {_advice(name)}", file=sys.stderr)
        return ExitCode.USER_ERROR
    if name == "serve" and "--headless" in rest:
        return _run_headless(rest)
    asks_help = any(word in ("-h", "--help") or word.startswith("--help=") for word in rest)
    in_a_job = name == "fetch" and TERMINATION_MESSAGE_VARIABLE in os.environ
    if (name in PROCESSES or in_a_job) and not asks_help:
        return _run_process(name, rest)
    return _run_command(name, rest)


def _run_headless(argv: list[str]) -> int:
    from kvasir.cli.headless import engine_words  # with the options of two commands

    try:
        words = engine_words(argv)
    except ValueError as error:
        print(f"kvasir serve: {error}", file=sys.stderr)
        return ExitCode.USER_ERROR
    return _run_process("engine", words)


def _run_process(name: str, argv: list[str]) -> int:
    # Errors are reported as failures, even before logging is set up.
    # The kernel ignores signals without a handler for the first process of a container.
    # A Job counts code 0 as done.
    code = ExitCode.FAILED if name == "fetch" else ExitCode.OK
    before = signal.signal(signal.SIGTERM, partial(_end_early, code))
    try:
        return _command(name, argv)
    except UsageError as error:
        return end(Failure(Reason.INVALID_SPEC, error.message))
    except ModuleNotFoundError as error:
        missing = _missing(name, error)
        failure = Failure(Reason.INVALID_SPEC, missing) if missing else failure_of(error)
        return _end_by(name, error, failure)
    except Exception as error:
        return _end_by(name, error, failure_of(error))
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_early(code: ExitCode, *_: object) -> None:
    # The process has not installed its own handler yet, or needs none.
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), b"stopped before it was ready\n")
    os._exit(code)


def _end_by(name: str, error: Exception, failure: Failure) -> int:
    with contextlib.suppress(OSError):
        if failure.reason is Reason.CRASH_LOOPING:
            traceback.print_exception(error)
        else:
            print(f"kvasir {name}: {failure.message}", file=sys.stderr)
    return end(failure)


def _run_command(name: str, argv: list[str]) -> int:
    try:
        return _command(name, argv)
    except ConfigError as error:
        print(f"kvasir {name}: {error}{place_in_file(argv, str(error))}", file=sys.stderr)
        return ExitCode.USER_ERROR
    except (CommandFailed, FailureError) as error:
        print(f"kvasir {name}: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except ModuleNotFoundError as error:
        if not (text := _missing(name, error)):
            raise
        print(f"kvasir {name}: {text}", file=sys.stderr)
        return ExitCode.USER_ERROR


def _command(name: str, argv: list[str]) -> int:
    if name not in _WITHOUT_FILES and not directory_exists():
        raise ConfigError(DELETED)
    command: Command = importlib.import_module(f"kvasir.cli.{name.replace('-', '_')}")
    return command.run(command.parser().parse_args(argv))


def _missing(command: str, error: ModuleNotFoundError) -> str:
    """Return advice on the extra that has a missing module, "" if none has it."""
    extra = _extra_of(error.name or "")
    if command in ("bench", "chaos") and error.name == "uvloop":
        extra = "bench"
    if extra in ("frontend", "engine") and command not in PROCESSES:
        extra = "frontend,engine"  # they start both
    return f"{error.name} is not installed: {install_extra(extra)}" if extra else ""


def _advice(name: str) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(COMMANDS)}"


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "Kvasir serves large language models, on Kubernetes and without it.",
        "",
        "usage: kvasir COMMAND …",
        "",
    ]
    lines += [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "`kvasir COMMAND --help` lists the options of a command."]
    return "\n".join(lines)


def _extra_of(module: str) -> str | None:
    top = module.partition(".")[0]
    servers = ("fastapi", "pydantic", "pydantic_core", "starlette", "uvicorn", "uvloop", "httptools")
    if top in (*servers, "fastapi_offline", "orjson", "tokenizers", "jinja2"):
        return "frontend"
    if top == "aiohttp":
        return "bench"
    if top == "obstore":
        return "s3"
    if top in ("torch", "numpy", "safetensors"):
        return "engine"
    return None


if __name__ == "__main__":
    sys.exit(main())
