"""`kvasir chat [URL]`: chat with a served model in the terminal, or send one message."""

import argparse
import sys
from typing import Any

from kvasir.cli.api_client import (
    URL_HELP,
    ApiServer,
    add_request_options,
    add_server_options,
    base_url,
    check_text,
    default_url,
    parts,
    read_input,
    request_fields,
)
from kvasir.config.options import CommandFailed, ConfigError, OptionParser

Message = dict[str, str]


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir chat",
        usage="kvasir chat [URL] [option …]",
        description="Chat with a served model. With --message, or with text on standard input, send one message "
        "and exit. In the chat, /reset starts a new conversation, /quit or Ctrl-D exits, Ctrl-C stops an answer.",
    )
    result.add_argument("url", metavar="URL", nargs="?", default=default_url(), help=URL_HELP)
    result.add_argument("-m", "--message", metavar="TEXT", help="send this message and exit")
    result.add_argument("--system", metavar="TEXT", help="system message")
    add_request_options(result)
    add_server_options(result)
    return result


def run(args: argparse.Namespace) -> int:
    check_text(args)
    with ApiServer(base_url(args.url), args.api_key) as server:
        chat = Chat(server, args.model or server.first_model(), args.system, request_fields(args))
        if args.message is not None or not sys.stdin.isatty():
            chat.ask(args.message if args.message is not None else read_input())
            return 0
        return _dialogue(chat)


class Chat:
    """One conversation: its messages so far, and the request for the next one."""

    def __init__(self, server: ApiServer, model: str, system: str | None, fields: dict[str, Any]) -> None:
        self._server = server
        self._fields = fields
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages: list[Message] = list(self._system)
        self._model = model

    @property
    def title(self) -> str:
        return f"{self._model} at {self._server.url}"

    def ask(self, text: str) -> None:
        """Print the answer as it streams in. An incomplete answer is not added to the conversation."""
        asked: list[Message] = [*self._messages, {"role": "user", "content": text.strip()}]
        answer: list[str] = []
        body = {"model": self._model, "messages": asked, **self._fields}
        for event in self._server.stream("/v1/chat/completions", body):
            for piece in parts(event, lambda choice: str(choice["delta"].get("content") or "")):
                answer.append(piece)
                print(piece, end="", flush=True)
        print()
        self._messages = [*asked, {"role": "assistant", "content": "".join(answer)}]

    def reset(self) -> None:
        self._messages = list(self._system)


def _dialogue(chat: Chat) -> int:
    import readline  # noqa: F401  (input() edits lines and keeps a history once it is imported)

    print(f"{chat.title}. /reset starts a new conversation, /quit exits.")
    while True:
        try:
            text = input("\n> ").strip()
            text.encode()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        except UnicodeError:
            print("the input was not UTF-8", file=sys.stderr)
            continue
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
        except (CommandFailed, ConfigError) as error:
            print(f"\n{error}", file=sys.stderr)
