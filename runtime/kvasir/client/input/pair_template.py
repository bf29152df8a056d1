"""PairTemplate: the prompt that a reranker reads for a query and a document."""

import logging
from typing import Final

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.request_errors import InvalidRequest
from kvasir.hub.chat_templates.chat_template import ChatTemplate, ChatTemplateError
from kvasir.hub.pooling.pooling_info import CLASSIFY, PoolingInfo

log = logging.getLogger(__name__)

# Of Qwen3-Reranker's model card. Its own chat template has no places for a pair.
_QWEN3: Final = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {{ messages[0].content }}
<Document>: {{ messages[1].content }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""  # Jinja removes the last line break
_QWEN3_TOKENS: Final = ("no", "yes")


class PairTemplate:
    def __init__(self, template: ChatTemplate) -> None:
        """Raises InvalidRequest for a template that does not write both texts."""
        self._template = template
        probe = self._rendered("\0", "\1")
        if "\0" not in probe or "\1" not in probe:
            raise InvalidRequest("the template leaves out messages of the roles query and document")
        start = probe.partition("\0")[0]
        # Clients that write the template themselves begin so.
        self._first_line = start.partition("\n")[0] if start.startswith("<") else ""
        self.num_characters = len(probe)
        self._after_document = len(probe.rpartition("\1")[2])

    def joined(self, query: str, document: str) -> tuple[str, tuple[int, int]]:
        """Return the prompt, and the characters of it that are the document. Raises InvalidRequest."""
        if self._first_line and query.startswith(self._first_line):
            return query + document, (len(query), len(query) + len(document))
        text = self._rendered(query, document)
        document = document.strip()  # templates may do that, too
        start = text.rfind(document, 0, len(text) - self._after_document)
        return text, (start, start + len(document)) if start >= 0 else (0, 0)

    def _rendered(self, query: str, document: str) -> str:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        try:
            return self._template.render(messages)
        except ChatTemplateError as error:
            raise InvalidRequest(f"the template of pairs cannot be rendered: {error}", "documents") from None


def pair_template(chat_templates: ChatTemplates, pooling: PoolingInfo) -> PairTemplate | None:
    """Return --chat-template's or the model's, if it has the roles query and document; None: there is none."""
    if pooling.task != CLASSIFY:
        return None  # vectors are made of one text
    template = chat_templates.own
    if template is not None and all(role in template.text for role in ("query", "document")):
        try:
            return PairTemplate(template)
        except InvalidRequest as error:
            log.warning("the chat template is not used for pairs of query and document: %s", error)
    tokens = pooling.label_tokens
    if tokens is not None and tokens.is_difference and tokens.names == _QWEN3_TOKENS:
        return PairTemplate(ChatTemplate(_QWEN3, {}))
    return None
