import time
from itertools import product
from typing import Any

import pytest

from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.chat_templates.message_forms import ContentForm

TEXT, PARTS, BOTH = ContentForm(), ContentForm(False, True), ContentForm(True, True)
ROLES = ("user", "system", "assistant", "tool")
LOOPS = {
    "direct": "{% for part in message.content %}{{ part.text }}{% endfor %}",
    "list": "{% for part in message['content'] | list %}{{ part.text }}{% endfor %}",
    "variable": "{% set parts = message['content'] %}{% for part in parts %}{{ part.text }}{% endfor %}",
    "typed": "{% for p in message.content %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}",
    "mapped": "{{ message.content | map(attribute='text') | join }}",
    "macro": "{{ shown(message.content) }}",
}
EITHER = (
    "{% if message.content is string %}{{ message.content }}{% else %}" + LOOPS["direct"] + "{% endif %}",
    "{{ either(message['content']) }}",
)
TEXTS = (
    "{{ message.content }}",
    "{% set c = message['content'] %}{{ c | trim }}",
    "{% for line in message.content.split('\\n') %}{{ line }}{% endfor %}",
    "{{ message.content | string }}",
    "{{ message.content | tojson }}",
    "{% if message.content is string %}{{ message.content }}{% else %}{{ message.content[0]['text'] }}{% endif %}",
)
MACROS = (
    "{% macro shown(parts) %}{% for part in parts %}{{ part.text }}{% endfor %}{% endmacro %}"
    "{% macro either(c) %}{% if c is string %}{{ c }}{% else %}{{ shown(c) }}{% endif %}{% endmacro %}"
)


def by_role(forms: dict[str, str], other: str = TEXTS[0]) -> ChatTemplate:
    branches = "".join(f"{{% elif message.role == '{role}' %}}{body}" for role, body in forms.items())
    return ChatTemplate(
        MACROS + "{% for message in messages %}{% if false %}" + branches + "{% else %}" + other
        + "{% endif %}{% endfor %}",
        {},
    )  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_the_form_of_a_content_is_that_of_its_role(role: str) -> None:
    others = {other: TEXT for other in ROLES if other != role}
    for body in LOOPS.values():
        assert by_role({role: body}).forms.contents == {**others, role: PARTS}, body
    for body in EITHER:
        assert by_role({role: body}).forms.contents == {**others, role: BOTH}, body
    for body in TEXTS:
        assert by_role({role: body}).forms.contents == {**others, role: TEXT}, body


def test_roles_may_all_have_the_form_of_parts() -> None:
    template = by_role({}, LOOPS["typed"])
    assert template.forms.contents == dict.fromkeys(ROLES, PARTS)
    messages = template.forms.applied([{"role": role, "content": role} for role in ROLES])
    assert template.render(messages) == "usersystemassistanttool"


def test_a_role_that_the_template_refuses_has_the_users_form() -> None:
    template = by_role({"tool": "{{ raise_exception('no tools') }}"}, LOOPS["direct"])
    assert template.forms.contents["tool"] == PARTS


def test_texts_and_parts_are_passed_on_where_both_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for body, shown in ((EITHER[0], "ab"), (TEXTS[0], "a\nb"), (LOOPS["direct"], "ab")):
        template = by_role({"user": body})
        assert template.render(template.forms.applied([{"role": "user", "content": parts}])) == shown
        assert template.render(template.forms.applied([{"role": "user", "content": "c"}])) == "c"


ARGUMENTS = {
    "{{ call.function.arguments | tojson }}": False,
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v | tojson }} {% endfor %}": False,
    "{% for k in call.function.arguments %}{{ k }}={{ call.function.arguments[k] }}{% endfor %}": False,
    "{{ '' + call.function.arguments }}": True,
    "{{ call.function.arguments }}": True,
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}": False,
}
CALLS = "{% for call in message.tool_calls %}<{{ call.function.name }} ARGUMENTS>{% endfor %}"
NULLS = {
    "{{ message.content }}CALLS": "",
    "{% if message.content %}{{ message.content }}{% endif %}CALLS": None,
    "{% if message.content is none %}CALLS{% else %}{{ message.content }}{% endif %}": None,
    "CALLS{% if message.content is not none %}[{{ '' + message.content }}]{% endif %}": None,
    "{% if 'x' in message.content %}x{% endif %}{{ message.content }}CALLS": "",
    "{% if 'content' in message %}{{ message.content + '' }}{% else %}CALLS{% endif %}": "absent",
}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"city": "Kyïv", "n": 1}}}],
    },
    {"role": "tool", "content": "3"},
]


@pytest.mark.parametrize(("nulls", "arguments"), list(product(NULLS, ARGUMENTS)))
def test_a_call_of_the_history_is_in_the_prompt(nulls: str, arguments: str) -> None:
    body = nulls.replace("CALLS", CALLS.replace("ARGUMENTS", arguments))
    template = by_role({"assistant": "{% if message.tool_calls %}" + body + "{% endif %}"})
    assert template.forms.arguments_are_text is ARGUMENTS[arguments]
    assert template.forms.absent_content.get("content", "absent") == NULLS[nulls]
    shown = template.render(template.forms.applied(HISTORY))
    assert shown.startswith("q<f ")
    assert shown.endswith(">3")
    assert "Kyïv" in shown
    assert "'" not in shown
    assert "\\" not in shown


def test_a_null_works_in_earlier_turns_too() -> None:
    last = "{% if not loop.last and loop.index < messages | length - 1 %}{{ '' + message.content }}{% endif %}"
    template = by_role({"assistant": last + "{% if message.tool_calls %}" + CALLS.replace(
        "ARGUMENTS", "{{ call.function.arguments | tojson }}") + "{% endif %}"})  # fmt: skip
    assert template.forms.absent_content == {"content": ""}


def test_a_text_before_calls_gets_a_message_of_its_own() -> None:
    calls = CALLS.replace("ARGUMENTS", "{{ '' + call.function.arguments }}")
    text = "{% else %}[{{ message.content }}]{% endif %}"
    template = by_role({"assistant": "{% if message.content is none %}" + calls + text})
    assert template.forms.splits_calls
    messages: list[dict[str, Any]] = [HISTORY[0], {**HISTORY[1], "content": "I look."}, HISTORY[2]]
    assert template.render(template.forms.applied(messages)) == 'q[I look.]<f {"city": "Kyïv", "n": 1}>3'


def test_calls_that_no_form_shows_stay_as_they_are() -> None:
    template = by_role({})
    assert template.forms.applied(HISTORY) == HISTORY


def test_the_trials_of_a_slow_template_end() -> None:
    began = time.thread_time()
    template = ChatTemplate(
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}", {}
    )
    assert time.thread_time() - began < 2
    assert template.forms.contents["user"] == TEXT
