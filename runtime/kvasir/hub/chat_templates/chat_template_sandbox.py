"""Bound the time and memory of a template.

Each loop, call and filter counts a step, and each text or list counts with its length. Steps check the thread's CPU
time. Operations that make much of little (multiplication, powers, widths, replacement) are checked before they run.
Jinja itself bounds range() to 100,000 items.
"""

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SIZE: Final = 2**24
MAX_SIZES: Final = 2**28
"""Total size of the values of a rendering."""
# numbers given to a method of a text or to a filter, such as a field's width
MAX_WIDTH: Final = 10_000
MAX_BITS: Final = 4096

_STEPS_PER_CHECK: Final = 16
# in str.format: a large width, or one from an argument
_WIDE_FIELD: Final = re.compile(r"\{[^{}]*(?:\d{5}|\{)")
# in the operator %
_WIDE_PERCENT: Final = re.compile(r"%[^A-Za-z%]*(?:\d{5}|\*)")
# for web pages; they make long texts of short ones
_DROPPED_FILTERS: Final = ("urlize", "wordwrap", "xmlattr")
_FILTERS_WITH_WIDTH: Final = ("do_batch", "do_center", "do_indent", "do_slice", "_tojson")


class TemplateTooCostly(SecurityError):
    pass


class Budget:
    def __init__(self, seconds: float, characters: int) -> None:
        self._end = time.thread_time() + seconds
        self._characters = characters
        self._steps = 0
        self._sizes = 0
        self._written = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_PER_CHECK == 0 and time.thread_time() > self._end:
            raise TemplateTooCostly("it takes too long for these messages and variables")

    def made(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple):
            size = len(value)
            self._sizes += size
            if size > MAX_SIZE or self._sizes > MAX_SIZES:
                raise TemplateTooCostly("it makes too long texts of these messages and variables")
        return value

    def written(self, value: Any) -> Any:
        if isinstance(value, str):
            self._written += len(value)
            if self._written > self._characters:
                raise TemplateTooCostly("its text is much longer than the context: shorten messages and variables")
        return value


_budget: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def budget_of(seconds: float, characters: int) -> Iterator[None]:
    token = _budget.set(Budget(seconds, characters))
    try:
        yield
    finally:
        _budget.reset(token)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters = {name: _counted(f) for name, f in self.filters.items() if name not in _DROPPED_FILTERS}
        self.step = _step
        self.written = _written
        self.joined = _joined
        del self.globals["lipsum"]

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = _counted(function)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if __obj is _written:  # the most frequent one
            return _budget.get().written(args[0])
        budget = _budget.get()
        budget.step()
        if __obj is _step:
            return True
        _check_arguments(__obj, args, kwargs)
        return budget.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operation(operator, left, right)
        return _budget.get().made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        function = super().wrap_str_format(value)
        if function is not None and _WIDE_FIELD.search(value.__self__):
            raise TemplateTooCostly("it formats a text with a width that is too large")
        return function

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Counting(self).visit(source), *args, **kwargs)


class _Counting(NodeTransformer):
    # adds a step to each loop, and turns the writing and joining of texts into calls
    def __init__(self, environment: BoundedSandbox) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call("step", [], node), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(self._call("step", [], node), node.test, lineno=node.lineno)
        return node.set_environment(self._environment)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("joined", node.nodes, node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            each if isinstance(each, nodes.TemplateData) else self._call("written", [each], node)
            for each in node.nodes
        ]
        return node

    def _call(self, name: str, args: list[nodes.Expr], near: nodes.Node) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=near.lineno)
        call = nodes.Call(function, args, [], None, None, lineno=near.lineno)
        call.set_environment(self._environment)
        return call


def _step() -> bool:
    # BoundedSandbox.call counts the call at the start of a loop's body
    return True


def _written(value: Any) -> Any:
    # BoundedSandbox.call counts the text
    return value


def _joined(*values: Any) -> str:
    return "".join(map(str, values))


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def filter_(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.step()
        _check_arguments(function, args, kwargs)
        return budget.made(function(*args, **kwargs))

    return filter_


def _check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # rejects calls with a value much larger than the arguments
    name = getattr(function, "__name__", "")
    text = getattr(function, "__self__", None)
    if isinstance(text, str):
        _check_numbers(args)
        args = (text, *args)
    elif name in _FILTERS_WITH_WIDTH:
        _check_numbers(args[1:])
        _check_numbers(kwargs.values())
    if name == "do_format":
        _check_operation("%", args[0], None)
    elif name in ("replace", "do_replace"):
        _check_replacement([each for each in (*args, *kwargs.values()) if isinstance(each, str)])
    elif name == "do_indent":
        widths = [len(each) for each in (*args[1:], *kwargs.values()) if isinstance(each, str)]
        _check_size(sum(widths) * str(args[0]).count("\n"))
    elif name in ("join", "do_join"):
        _check_join(args)


def _check_replacement(texts: list[str]) -> None:
    if len(texts) >= 3 and len(texts[0]) * len(texts[2]) > MAX_SIZE:
        _check_size(texts[0].count(texts[1]) * len(texts[2]))


def _check_join(args: tuple[Any, ...]) -> None:
    separators = [len(each) for each in args if isinstance(each, str)]
    for items in args:
        if isinstance(items, list | tuple | str) and separators:
            _check_size(len(items) * min(separators))
        if isinstance(items, list | tuple):
            _check_size(sum(len(each) for each in items if isinstance(each, str)))


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise TemplateTooCostly(f"it calls a function with a number beyond {MAX_WIDTH}")


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        if _WIDE_PERCENT.search(left):
            raise TemplateTooCostly("it formats a text with a width that is too large")
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        if len(left) + len(right) > MAX_SIZE:
            _check_size(len(left) + len(right))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                _check_size(len(value) * times)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * right)


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise TemplateTooCostly(f"it makes a text or list of more than {MAX_SIZE} items")


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateTooCostly(f"it computes a number of more than {MAX_BITS} bits")
