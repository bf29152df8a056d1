"""`kvasir chat [URL]`: chat with a served model in the terminal, or send one message."""

import argparse
import os
import sys

from kvasir.cli.api_client import (
    URL_HELP,
    ApiServer,
    add_request_options,
    add_server_options,
    base_url,
    check_text,
    default_url,
    read_input,
    request_fields,
)
from kvasir.cli.conversation import Conversation, Display
from kvasir.config.options import CommandFailed, ConfigError, OptionParser

HELP = '''\
/reset          start a new conversation
/system TEXT    set the system message and start a new conversation
/quit, Ctrl-D   exit
Ctrl-C          stop an answer
"""             begin a message of several lines, which ends with a second """
//TEXT          send a message that begins with a slash'''
_QUOTES = '"""'


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir chat",
        usage="kvasir chat [URL] [option …]",
        description="Chat with a served model. With --message, or with text on standard input, send one message "
        "and exit. In the chat, /help lists the commands. Reasoning is dim on a terminal; elsewhere it goes to "
        "standard error, and the answer alone to standard output.",
    )
    result.add_argument("url", metavar="URL", nargs="?", default=default_url(), help=URL_HELP)
    result.add_argument("--url", dest="given_url", metavar="URL", help="the same")
    result.add_argument("-m", "--message", "-q", "--quick", metavar="TEXT", help="send this message and exit")
    result.add_argument("--system", "--system-prompt", metavar="TEXT", help="system message")
    result.add_argument("--hide-reasoning", action="store_true", help="do not print the reasoning of the model")
    result.add_argument(
        "--stats",
        action=argparse.BooleanOptionalAction,
        help="print the number and rate of tokens after an answer, on standard error [default: in a chat]",
    )
    add_request_options(result)
    add_server_options(result)
    return result


def run(args: argparse.Namespace) -> int:
    check_text(args)
    given = None if args.message is None and sys.stdin.isatty() else _message(args.message)
    display = Display(
        hides_reasoning=args.hide_reasoning,
        has_stats=given is None if args.stats is None else args.stats,
        has_colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    )
    with ApiServer(base_url(args.given_url or args.url), args.api_key) as server:
        model = args.model or server.first_model()
        chat = Conversation(server, model, args.system, request_fields(args), display)
        if given is None:
            return _dialogue(chat)
        chat.ask(given)
        return 0


def _message(given: str | None) -> str:
    text = read_input() if given is None else given
    if not text.strip():
        raise ConfigError("the message is empty: give it with --message, or on standard input")
    return text


def _dialogue(chat: Conversation) -> int:
    import readline  # noqa: F401  (input() edits lines and keeps a history once it is imported)

    print(f"{chat.title}. /help lists the commands, /quit exits.")
    while True:
        try:
            text = _read()
            text.encode()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        except UnicodeError:
            print("the input was not UTF-8", file=sys.stderr)
            continue
        if text in ("/quit", "/exit"):
            return 0
        if _is_command(text):
            _obey(chat, text)
        elif text:
            _ask(chat, text.removeprefix("/") if text.startswith("//") else text)


def _read() -> str:
    # Lines between triple quotes are one message.
    text = input("\n> ").strip()
    if not text.startswith(_QUOTES):
        return text
    text = text.removeprefix(_QUOTES)
    while _QUOTES not in text:
        text += "\n" + input("… ")
    return text.partition(_QUOTES)[0].strip()


def _is_command(text: str) -> bool:
    # A path such as /etc/hosts is not a command.
    word = text.partition(" ")[0]
    return word.startswith("/") and "/" not in word[1:] and "\n" not in text


def _obey(chat: Conversation, text: str) -> None:
    word, _, rest = text.partition(" ")
    if word == "/help":
        print(HELP)
    elif word == "/reset":
        chat.reset()
    elif word == "/system":
        chat.set_system(rest.strip())
    else:
        print(f"{word} is not a command: /help lists them, and /{text} sends this text", file=sys.stderr)


def _ask(chat: Conversation, text: str) -> None:
    try:
        chat.ask(text)
    except KeyboardInterrupt:
        print(" [stopped]")
    except (CommandFailed, ConfigError) as error:
        print(f"\n{error}", file=sys.stderr)
