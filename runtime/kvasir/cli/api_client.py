"""A client of a server of the OpenAI API, and options of `kvasir chat` and `kvasir complete`.

A server that is unreachable or fails raises CommandFailed. A request that the server rejects raises ConfigError,
because the user can correct it.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, TypeVar

import httpx
from httpx_sse import SSEError, connect_sse

from kvasir.config.options import CommandFailed, ConfigError, OptionParser
from kvasir.config.parsers import argument_type, parse_int, parse_number
from kvasir_contract.endpoints import HTTP_PORT

DEFAULT_URL: Final = f"http://127.0.0.1:{HTTP_PORT}"
URL_HELP: Final = f"URL of the server [default: KVASIR_URL, else {DEFAULT_URL}]"
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d+(/.*)?")
_SAMPLING: Final = ("temperature", "top_p", "max_tokens", "stop", "seed")

Event = dict[str, Any]
Part = TypeVar("Part")


def default_url() -> str:
    return os.environ.get("KVASIR_URL") or DEFAULT_URL


def base_url(text: str) -> str:
    """Return the URL with a scheme and without a trailing /v1. Raises ConfigError for an invalid URL."""
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigError(f"{text} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text} is not the URL of a server: give http://HOST:PORT")
    return str(url).rstrip("/").removesuffix("/v1")


def looks_like_url(text: str) -> bool:
    # Names of models can contain "://" too (demo://, hf://org/name).
    return text.startswith(("http://", "https://")) or _HOST_AND_PORT.fullmatch(text) is not None


def add_request_options(parser: OptionParser) -> None:
    # Options that are not given are left to the server.
    group = parser.add_argument_group("request")
    number = argument_type(parse_number(0))
    group.add_argument("--temperature", type=number, metavar="T", help="sampling temperature; 0 is greedy")
    group.add_argument(
        "--top-p", type=number, metavar="P", help="sample from the most likely tokens with this total probability"
    )
    group.add_argument(
        "--max-tokens", type=argument_type(parse_int(1)), metavar="N", help="maximum tokens of the answer"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; can be repeated")
    group.add_argument("--seed", type=int, metavar="N", help="random seed: the same seed gives the same answer")


def add_server_options(parser: OptionParser) -> None:
    parser.add_argument(
        "--model", "--model-name", metavar="NAME", help="name of the model [default: the first served name]"
    )
    add_api_key(parser)


def add_api_key(parser: OptionParser) -> None:
    parser.add_argument(
        "--api-key",
        default=os.environ.get("KVASIR_API_KEY"),
        metavar="KEY",
        help="API key of the server [default: KVASIR_API_KEY]",
    )


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}


def check_text(args: argparse.Namespace) -> None:
    """Raise ConfigError for an argument that is not UTF-8, which a request cannot contain."""
    for name, value in vars(args).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not _is_utf_8(text):
                raise ConfigError(f"{name.replace('_', '-')} is not UTF-8")


def read_input() -> str:
    """Return all of standard input. Raises ConfigError if it is not UTF-8."""
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from error
    if not _is_utf_8(text):  # the locale may decode invalid bytes
        raise ConfigError("standard input is not UTF-8")
    return text


def parts(event: Event, read: Callable[[Any], Part]) -> list[Part]:
    """Apply `read` to each choice. Raises CommandFailed if the answer has another form."""
    try:
        return [read(choice) for choice in event["choices"]]
    except (LookupError, TypeError, AttributeError):
        raise _not_understood(json.dumps(event)) from None


class ApiServer:
    """A client of the server at a base URL; a context manager that closes its connections."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        self._has_key = bool(api_key)
        headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(600, connect=5))

    def __enter__(self) -> "ApiServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def first_model(self) -> str:
        try:
            answer = self._http.get("/v1/models")
        except httpx.RequestError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise self._refusal(answer)
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise CommandFailed(
                f"{self.url} does not list its models like an OpenAI server: check the URL"
            ) from None

    def ask(self, path: str, body: dict[str, Any]) -> Event:
        try:
            answer = self._http.post(path, json=body)
        except httpx.RequestError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise self._refusal(answer)
        return _object(answer.text)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Event]:
        has_ended = False
        try:
            with connect_sse(self._http, "POST", path, json=body | {"stream": True}) as source:
                if source.response.is_error:
                    source.response.read()
                    raise self._refusal(source.response)
                for event in source.iter_sse():
                    if event.data == "[DONE]":
                        return
                    if event.data:
                        value = _event(event.data)
                        has_ended = has_ended or _ends(value)
                        yield value
        except SSEError as error:
            raise CommandFailed(f"{self.url} does not stream its answer: {error}") from error
        except httpx.RequestError as error:
            raise self._unreachable(error) from error
        if has_ended:  # some servers send no [DONE]
            return
        raise CommandFailed(f"{self.url} closed the stream before the answer was complete: see its log")

    def _unreachable(self, error: httpx.RequestError) -> CommandFailed:
        advice = "Check the URL, or start a server with `kvasir serve`"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            advice = "Give the certificate of its issuer: set SSL_CERT_FILE to the PEM file"
        return CommandFailed(f"no answer from {self.url}: {error}. {advice}")

    def _refusal(self, answer: httpx.Response) -> Exception:
        if answer.status_code == 401:
            need = "does not accept this API key: check" if self._has_key else "needs an API key: give it with"
            return ConfigError(f"{self.url} {need} --api-key or the variable KVASIR_API_KEY")
        return _refusal(answer)


def _ends(event: Event) -> bool:
    choices = event.get("choices")
    return isinstance(choices, list) and any(
        isinstance(each, dict) and each.get("finish_reason") for each in choices
    )


def _event(text: str) -> Event:
    event = _object(text)
    if error := event.get("error"):
        raise CommandFailed(str(error.get("message") if isinstance(error, dict) else error))
    return event


def _object(text: str) -> Event:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _not_understood(text)
    return value


def _not_understood(text: str) -> CommandFailed:
    return CommandFailed(f"the server does not answer like an OpenAI server: {_one_line(text)!r}")


def _one_line(text: str) -> str:
    return " ".join(text[:200].split())


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(answer: httpx.Response) -> Exception:
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = _one_line(answer.text) or answer.reason_phrase
    kind = ConfigError if 400 <= answer.status_code < 500 and answer.status_code != 429 else CommandFailed
    return kind(f"{answer.status_code}: {message}")
