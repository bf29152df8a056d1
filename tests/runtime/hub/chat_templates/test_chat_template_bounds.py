"""A template, or what a client gives to it, that would take minutes or gigabytes is stopped soon."""

import resource
import threading
import time
from typing import Any

import pytest

from kvasir.hub.chat_templates.chat_template import (
    RENDER_SECONDS,
    ChatTemplate,
    ChatTemplateError,
    ChatTemplateTooSlow,
    count_values,
)

CHAT = [{"role": "user", "content": "Hi"}]
MAX_SECONDS = 5 * RENDER_SECONDS
"""CPU time of the test, which has a bound on its own time too."""
GROWTH = 512 * 2**20

BOMBS = {
    "product": "{{ 'a' * 10**10 }}",
    "product of a list": "{{ ([0] * 10**10) | length }}",
    "reversed product": "{{ 10**10 * 'a' }}",
    "product that is not written": "{% set x = messages[0].content * 10**10 %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "empty loops": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "written loops": "{% for i in range(99999) %}{% for j in range(99999) %}abcdefgh{% endfor %}{% endfor %}",
    "long writes": "{% set x = 'a' * 10**6 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "joining": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "block": "{% set y = 'a' * 10**6 %}{% set x %}{% for i in range(9999) %}{{ y }}{% endfor %}{% endset %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "replacement": "{% set x = 'a' * 10**6 %}{{ x | replace('a', x) | length }}",
    "replacing method": "{% set x = 'a' * 10**6 %}{{ x.replace('a', x) | length }}",
    "join": "{% set x = 'a' * 10**6 %}{{ x.join(x) | length }}",
    "join of a list": "{% set x = 'a' * 10**6 %}{{ x.join(range(9999) | map('string') | list) | length }}",
    "width": "{{ '%10000000000d' % 1 }}",
    "width of a star": "{{ '%*d' % (10**10, 1) }}",
    "format": "{{ '{:10000000000}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10**10) }}",
    "center": "{{ 'a'.center(10**10) }}",
    "zeros": "{{ 'a'.zfill(10**10) }}",
    "filter": "{{ 'a' | center(10**10) }}",
    "indent": "{{ 'a\na' | indent(10**10) }}",
    "indent with a text": "{% set x = 'a\n' * 10**6 %}{{ x | indent(x) | length }}",
    "format filter": "{{ '%10000000000d' | format(1) }}",
    "json": "{{ [1] | tojson(indent=10**10) }}",
    "words": "{{ lipsum(n=10**10) }}",
}


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped(name: str) -> None:
    template = ChatTemplate(BOMBS[name], {})  # compiling it must not compute the constants either
    memory, started = peak_memory(), time.thread_time()
    with pytest.raises(ChatTemplateError):
        template.render(CHAT)
    assert time.thread_time() - started < MAX_SECONDS
    assert peak_memory() - memory < GROWTH


LOOP = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


def test_long_variables_that_are_repeated_exceed_the_bound() -> None:
    with pytest.raises(ChatTemplateTooSlow, match="longer than the context"):
        ChatTemplate(LOOP, {}).render(CHAT * 5000, RENDER_SECONDS, 10**7, eos_token="x" * 10**6)


def test_a_long_chat_is_rendered() -> None:
    chat = [{"role": "user", "content": "word " * 200}] * 8000
    text = ChatTemplate(LOOP, {"eos_token": "</s>"}).render(chat, RENDER_SECONDS)
    assert len(text) == 8000 * 1004


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{ 'ab' * 3 }}{{ 3 * 4 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "ababab1210243"),
        ("{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none }}{{ 1.5 * 2 }}", "[1, 2]aba1None3.0"),
        ("{{ '%s-%05.1f' % ('a', 2) }}{{ '{:>4}|{}'.format(1, 2) }}", "a-002.0   1|2"),
        ("{{ 'a b'.replace(' ', '__') }}{{ ', '.join(['x', 'y']) }}{{ 'x'.center(3) }}", "a__bx, y x "),
        ("{% for i in range(3) if i != 1 %}{{ loop.index }}{{ i }}{% else %}none{% endfor %}", "1022"),
        ("{% for i in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for i in [[1, [2]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "12"),
        ("{{ {'a': 1} | tojson(indent=2) }}{{ 'a\nb' | indent(2) }}", '{\n  "a": 1\n}a\n  b'),
        ("{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}c{% endcall %}", "<1c>"),
    ],
)
def test_what_templates_do_is_the_same_within_the_bounds(text: str, rendered: str) -> None:
    assert ChatTemplate(text, {}).render(CHAT) == rendered


def test_threads_have_bounds_of_their_own() -> None:
    slow = ChatTemplate(BOMBS["nested loops"], {})
    errors: list[Any] = []

    def render() -> None:
        try:
            slow.render(CHAT, 0.2)
        except ChatTemplateTooSlow as error:
            errors.append(error)

    threads = [threading.Thread(target=render) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert ChatTemplate(LOOP, {}).render(CHAT) == "Hi"
    for thread in threads:
        thread.join()
    assert len(errors) == 2


@pytest.mark.parametrize(("value", "count"), [(5, 1), ([], 1), ({"a": [1, {"b": 2}]}, 5), ([0] * 9, 10)])
def test_values_are_counted_up_to_one_more_than_the_limit(value: Any, count: int) -> None:
    assert count_values(value, count) == count
    assert count_values(value, count + 1) == count
    assert count_values(value, count - 1) == count


def test_values_are_counted_however_deep_they_are() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    assert count_values(deep, 50) == 51
    assert count_values(deep, 200_000) == 100_001
