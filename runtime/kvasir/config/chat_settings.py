"""Settings of conversations: the chat template, and the formats of tool calls and reasoning."""

from dataclasses import dataclass
from pathlib import Path

from kvasir.config.options import option
from kvasir.config.parsers import parse_json_object


@dataclass(frozen=True)
class ChatConfig:
    chat_template: str | None = option(
        None,
        "chat template to use instead of the model's: a file, or the template itself",
        metavar="FILE_OR_TEXT",
        never_blank=True,
    )
    chat_template_content_format: str = option(
        "auto",
        "how the template gets a message's content: as one text (string), or as a list of parts (openai) "
        "[default: what the template reads, for each role]",
        choices=("auto", "string", "openai"),
    )
    default_chat_template_kwargs: str = option(
        "{}",
        "further variables of the template, as JSON; a request's chat_template_kwargs win [default: none]",
        parse=parse_json_object,
        metavar="JSON",
    )
    special_tokens_in_messages: str = option(
        "tokens",
        "how special tokens that the text of a message spells out are read, for example <|im_end|>: as tokens, as "
        "by vLLM and transformers, or as text, so that a text cannot end its message",
        choices=("tokens", "text"),
    )
    trust_request_chat_template: bool = option(False, "use the chat_template of a request, if it has one")
    exclude_tools_when_tool_choice_none: bool = option(
        False, "do not give the tools of a request with tool_choice none to the template"
    )
    tool_call_parser: str = option(
        "auto",
        "the format in which the model writes tool calls, by vLLM's name for its parser, for example hermes: see "
        "docs/tools.md; auto: the one that fits the chat template; none: calls are part of the text",
        metavar="NAME",
        never_blank=True,
    )
    tool_parser_plugin: str | None = option(
        None, "Python file with further formats of tool calls: see docs/tools.md", metavar="FILE", never_blank=True
    )
    reasoning_parser: str = option(
        "auto",
        "the format in which the model marks its reasoning, by vLLM's name for its parser, for example qwen3: see "
        "docs/reasoning.md; auto: the one that fits the chat template; none: the reasoning is part of the text",
        metavar="NAME",
        never_blank=True,
    )
    reasoning_parser_plugin: str | None = option(
        None,
        "Python file with further formats of reasoning: see docs/reasoning.md",
        metavar="FILE",
        never_blank=True,
    )

    @property
    def parser_plugins(self) -> tuple[Path, ...]:
        # A file can have formats of both kinds.
        given = (self.tool_parser_plugin, self.reasoning_parser_plugin)
        return tuple(dict.fromkeys(Path(file) for file in given if file is not None))
