"""Render a conversation with a model's Jinja template, as transformers' apply_chat_template does.

The template is not trusted: it runs in a sandbox with bounds and gets only plain data.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any, Final, NoReturn

import jinja2
import jinja2.utils
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from kvasir.hub.chat_templates.chat_template_sandbox import BoundedSandbox, TemplateTooCostly, budget_of
from kvasir.hub.chat_templates.message_forms import Message, find_forms
from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_bytes, read_json_if_any
from kvasir.hub.tokenizer_files import read_tokenizer_config

# CPU time of a rendering. A chat of 1,000 messages takes 0.02 s.
RENDER_SECONDS: Final = 1.0
MAX_CHARACTERS: Final = 2**28
# CPU time of all trial conversations at load; mostly 2 to 10 ms
TRIALS_SECONDS: Final = 0.3
TRIAL_CHARACTERS: Final = 2**20

# marks the end of a message, as in transformers
_END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplateError(ValueError):
    pass


class ChatTemplateTooSlow(ChatTemplateError):
    """The rendering exceeded a bound of time or size."""


class ChatTemplate:
    def __init__(self, text: str, special_tokens: Mapping[str, str], where: str = "the chat template") -> None:
        """Raises HubError."""
        environment = _environment()
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise HubError(f"{where} is not a Jinja template, line {error.lineno}: {error.message}") from None
        except Exception as error:  # of the lexer or compiler, as for deep nesting
            raise HubError(f"{where} cannot be compiled: {type(error).__name__}: {error}") from None
        self.text = text
        self._special_tokens = dict(special_tokens)
        end = thread_time() + TRIALS_SECONDS

        def tried(messages: Sequence[Message], tools: Any) -> str | None:
            with suppress(ChatTemplateError):
                return self.render(messages, end - thread_time(), TRIAL_CHARACTERS, tools=tools)
            return None

        self.forms = find_forms(tried)

    @classmethod
    def load(cls, path: Path) -> "ChatTemplate | None":
        """Return the template of a model's directory. Raises HubError."""
        found = _find(path)
        if found is None:
            return None
        return _compiled(*found, tuple(read_tokenizer_config(path).special_tokens.items()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        seconds: float = RENDER_SECONDS,
        characters: int = MAX_CHARACTERS,
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Return a prompt with its special tokens, to be encoded without adding them again.

        `seconds`: CPU time. `characters`: bound on the text; a macro's text counts twice. `continue_final_message`:
        end with the last message's text. `kwargs`: further variables. Raises ChatTemplateError, and
        ChatTemplateTooSlow at a bound.
        """
        if "messages" in kwargs:
            raise ChatTemplateError("messages is the conversation itself and cannot be given as a further variable")
        variables: dict[str, Any] = {"tools": None, "documents": None, **self._special_tokens, **kwargs}
        # Templates test the presence of a key, which an API's null lacks. Some test for a null content.
        present = [
            {key: value for key, value in message.items() if value is not None or key == "content"}
            for message in messages
        ]
        if continue_final_message:
            present[-1] |= {"content": _marked(present[-1].get("content"))}
        try:
            with budget_of(seconds, characters):
                text = self._template.render(
                    variables, messages=present, add_generation_prompt=add_generation_prompt
                )
        except TemplateTooCostly as error:
            raise ChatTemplateTooSlow(str(error.message)) from None
        except Exception as error:  # of any kind
            raise ChatTemplateError(_reason(error)) from None
        return _up_to_mark(text) if continue_final_message else text


@lru_cache(maxsize=16)
def _compiled(text: str, where: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    # Compilation and trials take 10 to 60 ms, and frontends of one process may share a template.
    return ChatTemplate(text, dict(special_tokens), where)


def _marked(content: str | list[dict[str, str]] | None) -> str | list[dict[str, str]]:
    if content is None or isinstance(content, str):
        return (content or "") + _END_MARK
    if not content:
        return [{"type": "text", "text": _END_MARK}]
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END_MARK}]


def _up_to_mark(text: str) -> str:
    # As in transformers: a template that strips messages also strips the mark's space.
    end = text.rfind(_END_MARK.strip())
    if end < 0:
        raise ChatTemplateError("it leaves out the end of the last message, which therefore cannot be continued")
    return text[:end] if text[end:].startswith(_END_MARK) else text[:end].rstrip()


def _find(path: Path) -> tuple[str, str] | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return read_bytes(file).decode(), str(file)
        except UnicodeDecodeError as error:
            raise HubError(f"{file} is not a text in UTF-8 ({error}): download it again") from None
    # Multimodal models have the second file, for all parts.
    files = path / "tokenizer_config.json", path / "chat_template.json"
    file = next((file for file in files if read_json_if_any(file).get("chat_template") is not None), files[0])
    template = read_json_if_any(file).get("chat_template")
    if isinstance(template, list):
        template = _default_of(template, file)
    if template is not None and not isinstance(template, str):
        raise HubError(f"{file}: chat_template is neither a text nor a list of named ones: download it again")
    return None if template is None else (template, f"{file}: chat_template")


def _default_of(templates: list[Any], file: Path) -> Any:
    by_name = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    if "default" not in by_name:
        names = ", ".join(sorted(str(name) for name in by_name)) or "none"
        raise HubError(
            f"{file}: chat_template has no template named default (it has: {names}); put the one to use into "
            f"{file.with_name('chat_template.jinja')}"
        )
    return by_name["default"]


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return str(error.message or type(error).__name__)
    return f"it fails with {type(error).__name__}: {error}"


def _environment() -> BoundedSandbox:
    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.add_filter("tojson", _tojson)
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _new_dict,
        "namespace": _Namespace,
    }
    return environment


class _Generation(Extension):
    # {% generation %} … {% endgeneration %} marks text for training; here it only groups
    tags = {"generation"}  # noqa: RUF012 - a set, as in the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(jinja2.utils.Namespace):
    # Jinja's namespace() without names that Python uses. No named parameter, so that namespace(self=1) works as in
    # Jinja.
    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace takes no name with a leading underscore, such as {name}"
        )


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    # through the class dict, a template could reach methods that change the messages
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's filter escapes <, > and &
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def count_values(value: Any, limit: int) -> int:
    """Return the number of nested values, at most `limit` + 1."""
    count, waiting = 0, [value]
    while waiting and count <= limit:
        part = waiting.pop()
        count += 1
        if isinstance(part, list | dict):
            waiting += islice(part.values() if isinstance(part, dict) else part, limit)
    return count
