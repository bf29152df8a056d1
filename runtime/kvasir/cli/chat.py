"""`kvasir chat [URL]`: talk to a served model in the terminal, or ask it once; a client of the OpenAI API."""

import argparse
import json
import os
import sys
from collections.abc import Iterator

import httpx

from kvasir.config.options import ConfigError, OptionParser

Message = dict[str, str]


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir chat",
        usage="kvasir chat [URL] [option …]",
        description="Talk to a served model. With --message, or with text on standard input, asks once and ends. "
        "In the dialogue /reset forgets it, /quit or Ctrl-D ends it, Ctrl-C stops an answer.",
    )
    result.add_argument(
        "url",
        nargs="?",
        default=os.environ.get("KVASIR_URL", "http://127.0.0.1:8000"),
        help="where the model is served [default: KVASIR_URL, else http://127.0.0.1:8000]",
    )
    result.add_argument("-m", "--message", metavar="TEXT", help="ask this once and end")
    result.add_argument("--model", metavar="NAME", help="model name [default: the first one served]")
    result.add_argument("--system", metavar="TEXT", help="system message")
    result.add_argument("--temperature", type=float, metavar="T", help="0 for the most likely answer")
    result.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    result.add_argument("--api-key", default=os.environ.get("KVASIR_API_KEY"), help="[default: KVASIR_API_KEY]")
    return result


def run(args: argparse.Namespace) -> int:
    headers = {b"Authorization": f"Bearer {args.api_key}".encode()} if args.api_key else {}
    url = base_url(args.url)
    timeout = httpx.Timeout(600, connect=5)
    with httpx.Client(base_url=url, headers=headers, timeout=timeout) as http:
        chat = Chat(http, args)
        if args.message is not None or not sys.stdin.isatty():
            chat.ask(args.message if args.message is not None else sys.stdin.read())
            return 0
        return _dialogue(chat, url)


def base_url(text: str) -> str:
    """Also of a URL with the /v1 that other clients want, and of a bare host:port. Raises ConfigError."""
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{text} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text} is not the URL of a server: give http://HOST:PORT")
    return str(url).rstrip("/").removesuffix("/v1")


class ChatError(ConfigError):
    """The server cannot be reached or refused; the message is for the user."""


class Chat:
    """One conversation: its messages so far, and how to ask for the next one."""

    def __init__(self, http: httpx.Client, args: argparse.Namespace) -> None:
        self._http = http
        self._options = {
            name: value
            for name, value in (("temperature", args.temperature), ("max_tokens", args.max_tokens))
            if value is not None
        }
        self._system: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
        self._messages: list[Message] = list(self._system)
        self.model: str = args.model or self._first_model()

    def ask(self, text: str) -> None:
        """Print the answer as it streams in; an answer that was cut off is not kept."""
        asked: list[Message] = [*self._messages, {"role": "user", "content": text.strip()}]
        answer: list[str] = []
        for piece in self._stream(asked):
            answer.append(piece)
            print(piece, end="", flush=True)
        print()
        self._messages = [*asked, {"role": "assistant", "content": "".join(answer)}]

    def reset(self) -> None:
        self._messages = list(self._system)

    def _first_model(self) -> str:
        try:
            answer = self._http.get("/v1/models")
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise ChatError(_error_of(answer))
        return str(answer.json()["data"][0]["id"])

    def _stream(self, messages: list[Message]) -> Iterator[str]:
        body = {"model": self.model, "messages": messages, "stream": True, **self._options}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.is_error:
                    answer.read()
                    raise ChatError(_error_of(answer))
                for line in answer.iter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line[len("data: ") :])
                    if "error" in event:
                        raise ChatError(event["error"]["message"])
                    for choice in event["choices"]:
                        yield choice["delta"].get("content") or ""
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> ChatError:
        return ChatError(f"no answer from {self._http.base_url}: {error}. Is a model served there? (kvasir serve)")


def _error_of(answer: httpx.Response) -> str:
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200] or answer.reason_phrase
    return f"{answer.status_code}: {message}"


def _dialogue(chat: Chat, url: str) -> int:
    import readline  # noqa: F401  (input() edits lines and keeps a history once it is imported)

    print(f"{chat.model} at {url}. /reset forgets the conversation, /quit ends it.")
    while True:
        try:
            text = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if text in ("/quit", "/exit"):
            return 0
        if text == "/reset":
            chat.reset()
            continue
        if not text:
            continue
        try:
            chat.ask(text)
        except KeyboardInterrupt:
            print(" [stopped]")
        except ChatError as error:
            print(f"\n{error}", file=sys.stderr)
