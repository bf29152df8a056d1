"""What a template expects as a message's content."""

import pytest

from kvasir.hub.chat_template import ChatTemplate


@pytest.mark.parametrize(
    "loop",
    [
        "{% for part in message.content %}{{ part.text }}{% endfor %}",
        "{% for part in message['content'] | list %}{{ part.text }}{% endfor %}",
        "{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}",
        "{% set parts = message['content'] %}{% for part in parts %}{{ part.text }}{% endfor %}",
    ],
)
def test_a_template_that_loops_over_the_content_wants_parts(loop: str) -> None:
    assert ChatTemplate("{% for message in messages %}" + loop + "{% endfor %}", {}).loops_over_content


@pytest.mark.parametrize(
    "text",
    [
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}{% set c = message['content'] %}{{ c | trim }}{% endfor %}",
        "{% for m in messages %}{% for call in m.tool_calls %}{{ call }}{% endfor %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for line in m.content.split('\\n') %}{{ line }}{% endfor %}{% endfor %}",
    ],
)
def test_other_templates_get_one_text(text: str) -> None:
    assert not ChatTemplate(text, {}).loops_over_content
