"""Conversations with tools, made from the templates of corpus/tools.json.

A case has the user's question, the expected call, the tool's result and the expected answer. Names of tools
and parameters vary, so that the model takes them from the offered list. Without its tool, a question has
another answer: a sentence, or the arguments as JSON.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from demo.reading import CORPUS

_SLOT: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        # As the chat template writes it.
        call = {"name": self.name, "arguments": self.arguments}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


@dataclass(frozen=True)
class Case:
    """A question. Without a call, the answer follows at once."""

    question: str
    call: Call | None
    result: str
    answer: str

    def messages(self) -> list[dict[str, Any]]:
        # As a client has it, with the answer.
        messages: list[dict[str, Any]] = [{"role": "user", "content": self.question}]
        if self.call is not None:
            function = {"name": self.call.name, "arguments": self.call.arguments}
            calls = [{"type": "function", "function": function}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages.append({"role": "tool", "content": self.result})
        return [*messages, {"role": "assistant", "content": self.answer}]


@dataclass(frozen=True)
class Kind:
    """The action of one tool. Clients offer it under several names."""

    names: tuple[str, ...]
    # Slot of the questions → possible names of the parameter.
    parameters: dict[str, list[str]]
    questions: tuple[str, ...]
    results: tuple[str, ...]
    answer: str
    # Further parameters, which no call has → type.
    optional: dict[str, str] = field(default_factory=dict)
    # The answer without the tool. None: the answer to unknown questions.
    without: str | None = None


@dataclass
class Offer:
    tools: list[dict[str, Any]] = field(default_factory=list)
    # First name of the kind → name of its tool here, and of its parameter for each slot.
    known: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)

    @property
    def lines(self) -> str:
        # As the chat template writes it.
        functions = [tool["function"] for tool in self.tools]
        return "\n".join(json.dumps({"name": f["name"], "parameters": _types(f)}) for f in functions)


class ToolCorpus:
    def __init__(self, content: dict[str, Any], unknown: str) -> None:
        self.kinds = [Kind(**{**kind, "names": tuple(kind["names"])}) for kind in content["tools"]]
        self.slots: dict[str, list[Any]] = content["slots"]
        self._others = content["other_tools"]
        self._unknown = unknown

    def offer(self, rng: random.Random, kinds: list[Kind], others: int) -> Offer:
        # These kinds and some tools that no question needs, in any order.
        offer = Offer([self._other(rng) for _ in range(others)])
        for kind in kinds:
            chosen = {slot: rng.choice(names) for slot, names in kind.parameters.items()}
            properties = {name: self._type_of(slot) for slot, name in chosen.items()}
            if kind.optional and rng.random() < 0.2:
                name = rng.choice(sorted(kind.optional))
                properties[name] = kind.optional[name]
            tool = _tool(rng.choice(kind.names), properties)
            offer.tools.append(tool)
            offer.known[kind.names[0]] = (tool["function"]["name"], chosen)
        rng.shuffle(offer.tools)
        return offer

    def sample(self, rng: random.Random) -> tuple[Offer, Iterator[Case]]:
        # The cases are endless, and most need one of the tools.
        kinds = rng.sample(self.kinds, rng.choice((0, 1, 1, 1, 1, 2, 2, 3)))
        offer = self.offer(rng, kinds, rng.choice((0, 0, 0, 1, 2)))

        def cases() -> Iterator[Case]:
            while True:
                json_kinds = [kind for kind in self.kinds if kind.without == "{arguments}"]
                other = rng.choice(json_kinds if rng.random() < 0.5 else self.kinds)
                kind = rng.choice(kinds) if kinds and rng.random() < 0.8 else other
                yield self.case(rng, kind, rng.choice(kind.questions), offer)

        return offer, cases()

    def case(self, rng: random.Random, kind: Kind, template: str, offer: Offer) -> Case:
        filling = {slot: self._value(rng, slot) for slot in kind.parameters}
        question = _filled(template, filling)
        if kind.names[0] not in offer.known:
            without = self._unknown if kind.without is None else kind.without
            arguments = json.dumps(filling, ensure_ascii=False)
            return Case(question, None, "", without.replace("{arguments}", arguments))
        name, parameters = offer.known[kind.names[0]]
        call = Call(name, {parameters[slot]: value for slot, value in filling.items()})
        result = self._result(rng, kind, filling)
        return Case(question, call, result, _filled(kind.answer, {**filling, "result": result.rstrip(".!")}))

    def listed(self) -> list[tuple[Offer, Case]]:
        """Return a fixed list of cases: eight of every phrasing with its tool, and two without."""
        rng = random.Random(0)
        return [
            (offer, self.case(rng, kind, template, offer))
            for kind in self.kinds
            for template in dict.fromkeys(kind.questions)
            for number in range(10)
            for offer in [self._offer_for(rng, kind, number)]
        ]

    def _offer_for(self, rng: random.Random, kind: Kind, number: int) -> Offer:
        others = rng.sample([other for other in self.kinds if other is not kind], rng.choice((0, 0, 1, 2)))
        return self.offer(rng, [kind, *others] if number < 8 else others, rng.choice((0, 0, 1)))

    def echo(self, rng: random.Random) -> Case:
        # Repeat some words: the shortest question that needs copying.
        slots = [slot for slot, values in self.slots.items() if not isinstance(values[0], int)]
        words = [
            str(rng.choice(self._numbers)) if rng.random() < 0.4 else str(self._value(rng, rng.choice(slots)))
            for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))
        ]
        text = " ".join(words)
        return Case(rng.choice(("Repeat: {}", "Say {}", "Echo {}", "Repeat {}")).format(text), None, "", text)

    @cached_property
    def _numbers(self) -> range:
        # Two digits.
        return range(
            10, 1 + max(value for slot in self.slots.values() if isinstance(slot[0], int) for value in slot)
        )

    def words(self) -> list[str]:
        # The fillers of slots. Each is a single token, so that the model copies it in one step.
        words = [word for slot in self.slots.values() if not isinstance(slot[0], int) for word in slot]
        names = [
            name for kind in self.kinds for name in dict.fromkeys(kind.names) if name not in ("add", "multiply")
        ]
        return [*words, *names, *map(str, self._numbers)]

    def texts(self) -> Iterator[str]:
        # For the tokenizer's vocabulary, with empty slots.
        for kind in self.kinds:
            for template in (*kind.questions, *kind.results, kind.answer, kind.without or ""):
                yield _SLOT.sub("", template)
            for name in kind.names:
                offer = self.offer(random.Random(name), [kind], 1)
                tool, parameters = offer.known[kind.names[0]]
                yield str(Call(tool, dict.fromkeys(parameters.values(), "")))
                yield f"<tools>\n{offer.lines}\n</tools><tool_response>\n</tool_response>"

    # ---------------------------------------------------------------------------------------- details

    def _other(self, rng: random.Random) -> dict[str, Any]:
        types = self._others["parameters"]
        properties = {name: types[name] for name in rng.sample(sorted(types), rng.randint(0, 3))}
        return _tool(f"{rng.choice(self._others['verbs'])}_{rng.choice(self._others['nouns'])}", properties)

    def _result(self, rng: random.Random, kind: Kind, filling: dict[str, Any]) -> str:
        template = rng.choice(kind.results)
        slots = {slot: self._value(rng, slot) for slot in _SLOT.findall(template)}
        return _filled(template, {**slots, **filling})

    def _value(self, rng: random.Random, slot: str) -> Any:
        values = self.slots[slot]
        return rng.randint(values[0], values[1]) if isinstance(values[0], int) else rng.choice(values)

    def _type_of(self, slot: str) -> str:
        return "integer" if isinstance(self.slots[slot][0], int) else "string"


def read_tools(unknown: str, path: Path = CORPUS / "tools.json") -> ToolCorpus:
    return ToolCorpus(json.loads(path.read_text()), unknown)


def _filled(template: str, values: dict[str, Any]) -> str:
    return _SLOT.sub(lambda slot: str(values[slot[1]]), template)


def _tool(name: str, properties: dict[str, str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _types(function: dict[str, Any]) -> dict[str, str]:
    return {name: schema["type"] for name, schema in function["parameters"]["properties"].items()}
