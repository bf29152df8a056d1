"""Evaluate the schema's CEL rules (x-kubernetes-validations) with cel-python."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError


class RuleError(Exception):
    """A rule cannot be evaluated on this value."""


class Rules:
    """Compiles each rule once, and evaluates it on values that have the schema's types."""

    def __init__(self) -> None:
        self._environment = celpy.Environment()
        self._programs: dict[str, celpy.Runner] = {}

    def broken(self, value: Any, node: Mapping[str, Any]) -> Iterator[str]:
        # A rule about `oldSelf` compares an update with the old object; without a cluster nothing is updated.
        rules = [rule for rule in node.get("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]]
        if not rules:
            return
        try:
            activation = {"self": _to_cel(value, node)}
            for rule in rules:
                if not self._value(rule["rule"], activation):
                    yield self._message(rule, activation)
        except (CELEvalError, ValueError, TypeError) as error:
            raise RuleError(f"{value!r}: {error}") from error

    def _message(self, rule: Mapping[str, Any], activation: dict[str, Any]) -> str:
        # As in the API server, the plain message stands in if the one with values cannot be made.
        if "messageExpression" in rule:
            with contextlib.suppress(CELEvalError):
                return str(self._value(rule["messageExpression"], activation))
        return str(rule["message"])

    def _value(self, text: str, activation: dict[str, Any]) -> Any:
        program = self._programs.get(text)
        if program is None:
            program = self._environment.program(self._environment.compile(text))
            self._programs[text] = program
        return program.evaluate(activation)


def _to_cel(value: Any, node: Mapping[str, Any]) -> Any:
    # YAML's 1 is a double if the schema's type is number.
    if node.get("type") == "number":
        return celtypes.DoubleType(value)
    if isinstance(value, Mapping):
        fields, others = node.get("properties", {}), node.get("additionalProperties", {})
        return celtypes.MapType(
            {celtypes.StringType(k): _to_cel(v, fields.get(k, others)) for k, v in value.items()}
        )
    if isinstance(value, list):
        return celtypes.ListType([_to_cel(item, node.get("items", {})) for item in value])
    return json_to_cel(value)
