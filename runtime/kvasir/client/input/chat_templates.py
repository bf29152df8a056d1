"""Chat templates: the model's, that of --chat-template, and those of requests.

Without any, line breaks join the messages, as a base model would continue them.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kvasir.client.request_errors import InvalidRequest
from kvasir.config.chat_settings import ChatConfig
from kvasir.config.options import ConfigError
from kvasir.hub.chat_templates.chat_template import MAX_CHARACTERS, RENDER_SECONDS, ChatTemplate
from kvasir.hub.chat_templates.message_forms import PARTS_ONLY
from kvasir.hub.hub_errors import HubError
from kvasir.hub.tokenizer_files import read_tokenizer_config

log = logging.getLogger(__name__)

PLAIN: Final = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}{% endfor %}"
)
# set by the server, or reserved
RESERVED_VARIABLES: Final = frozenset(
    {"self", "messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"}
)
MAX_TEMPLATE_CHARACTERS: Final = 64 * 1024  # compiling megabytes takes seconds
REQUEST_TEMPLATES: Final = 32  # compiled, in the cache
# By --chat-template-content-format. None: the forms that the template accepts.
_CONTENTS: Final = {"auto": None, "string": {}, "openai": PARTS_ONLY}


class ChatTemplates:
    """Renders conversations with the service's or a request's template. Thread-safe."""

    def __init__(
        self,
        template: ChatTemplate | None,
        special_tokens: Mapping[str, str] | None = None,
        config: ChatConfig = ChatConfig(),  # noqa: B008  (it is frozen)
    ) -> None:
        """`special_tokens`: variables for templates of requests. Raises ConfigError."""
        # then the tokenizer adds its special tokens
        self.is_plain = template is None
        self._template = template or ChatTemplate(PLAIN, {})
        self._special_tokens = dict(special_tokens or {})
        self._contents = _CONTENTS[config.chat_template_content_format]
        self._variables = _default_variables(config.default_chat_template_kwargs)
        self._trusts_requests = config.trust_request_chat_template
        self.quotes_special_tokens = config.special_tokens_in_messages == "text"
        self._plain_logged = False
        self._compiled = lru_cache(REQUEST_TEMPLATES)(self._compile)

    @classmethod
    def load(cls, path: Path, config: ChatConfig = ChatConfig()) -> "ChatTemplates":  # noqa: B008
        """Raises ConfigError, or HubError for the model's own template."""
        tokens = read_tokenizer_config(path).special_tokens
        if config.chat_template is None:
            return cls(ChatTemplate.load(path), tokens, config)
        try:
            return cls(ChatTemplate(_text_of(config.chat_template), tokens, "--chat-template"), tokens, config)
        except HubError as error:
            raise ConfigError(str(error)) from None

    @property
    def own(self) -> ChatTemplate | None:
        return None if self.is_plain else self._template

    @property
    def text(self) -> str | None:
        return None if self.is_plain else self._template.text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        seconds: float = RENDER_SECONDS,
        characters: int = MAX_CHARACTERS,
        /,
        *,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt. `chat_template`: the request's own.

        Raises InvalidRequest for a template that is not allowed or valid, and the errors of ChatTemplate.render.
        """
        template = self._template if chat_template is None else self._of_request(chat_template)
        if template is self._template and self.is_plain:
            self._log_plain()
        forms = template.forms
        if self._contents is not None and not self.is_plain_for(chat_template):
            forms = replace(forms, contents=self._contents)
        return template.render(forms.applied(messages), seconds, characters, **{**self._variables, **variables})

    def is_plain_for(self, chat_template: str | None) -> bool:
        """Return whether line breaks join the messages of a request with this template."""
        return self.is_plain and chat_template is None

    def _of_request(self, text: str) -> ChatTemplate:
        if not self._trusts_requests:
            raise InvalidRequest(
                "chat_template is refused: this server uses a request's own template only with "
                "--trust-request-chat-template; leave it out",
                "chat_template",
            )
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidRequest(
                f"chat_template has {len(text)} characters: give at most {MAX_TEMPLATE_CHARACTERS}", "chat_template"
            )
        try:
            return self._compiled(text)
        except HubError as error:
            raise InvalidRequest(str(error), "chat_template") from None

    def _compile(self, text: str) -> ChatTemplate:
        return ChatTemplate(text, self._special_tokens, "chat_template")

    def _log_plain(self) -> None:
        if not self._plain_logged:
            self._plain_logged = True
            log.warning(
                "this model has no chat template: the messages of chats are joined by line breaks; "
                "--chat-template gives it one"
            )


def _text_of(given: str) -> str:
    """Return the template that the option names or is. Raises ConfigError."""
    try:
        return Path(given).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"--chat-template {given} is not a text in UTF-8 ({error})") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        if "{{" in given or "{%" in given or "\n" in given:
            return given
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--chat-template {given}: {reason}; give a file, or a template with {{{{ or {{% in it"
        ) from None


def _default_variables(text: str) -> dict[str, Any]:
    variables: dict[str, Any] = json.loads(text)
    if taken := sorted(RESERVED_VARIABLES & variables.keys()):
        raise ConfigError(
            f"--default-chat-template-kwargs: {', '.join(taken)} cannot be set: requests and the server set it"
        )
    return variables
