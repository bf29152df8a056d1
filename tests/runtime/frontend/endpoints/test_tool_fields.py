from typing import Any

import pytest

from kvasir.frontend.endpoints import tool_use as module
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.endpoints.tool_use import MAX_SCHEMA_DEPTH, MAX_SCHEMA_VALUES, MAX_TOOLS, ToolUse
from kvasir.frontend.errors import ApiError
from kvasir.frontend.parsers import ToolChoice
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.request_bodies.request_body import parse

USER = {"role": "user", "content": "How many pods run?"}
PARAMETERS = {"type": "object", "properties": {"namespace": {"type": "string"}}, "required": ["namespace"]}


def tool(name: str = "pods", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def use_one(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def use_some(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [use_one(name) for name in names]}}


def use_of(**fields: Any) -> ToolUse:
    body = parse(ChatRequest, {"messages": [USER], **fields})
    body.check()
    return body.tool_use()


def names(tools: tuple[Tool, ...]) -> list[str]:
    return [each.name for each in tools]


def test_tools_are_read_with_all_that_they_say() -> None:
    use = use_of(tools=[tool(description="Counts.", parameters=PARAMETERS, strict=True), tool("nodes")])
    assert use.offered == use.callable == (Tool("pods", "Counts.", PARAMETERS, strict=True), Tool("nodes"))
    assert (use.choice, use.is_named, use.parallel) == (ToolChoice.AUTO, False, True)
    assert not use_of(tools=[tool()], parallel_tool_calls=False).parallel


def test_templates_get_the_fields_that_models_were_trained_with() -> None:
    use = use_of(
        tools=[tool(description="Counts.", parameters=PARAMETERS, strict=True), tool("nodes", strict=None)]
    )
    assert use.for_template == [
        tool(description="Counts.", parameters=PARAMETERS),
        tool("nodes", description="", parameters={"type": "object", "properties": {}}),
    ]
    assert use_of().for_template is None


@pytest.mark.parametrize(
    ("choice", "expected", "callable"),
    [
        (None, ToolChoice.AUTO, ["pods", "nodes", "jobs"]),
        ("auto", ToolChoice.AUTO, ["pods", "nodes", "jobs"]),
        ("none", ToolChoice.NONE, []),
        ("required", ToolChoice.REQUIRED, ["pods", "nodes", "jobs"]),
        (use_one("nodes"), ToolChoice.REQUIRED, ["nodes"]),
        (use_some("auto", "jobs", "pods", "jobs"), ToolChoice.AUTO, ["jobs", "pods"]),
        (use_some("required", "jobs"), ToolChoice.REQUIRED, ["jobs"]),
    ],
)
def test_a_choice_says_which_tools_may_be_called(choice: Any, expected: ToolChoice, callable: list[str]) -> None:
    use = use_of(tools=[tool(), tool("nodes"), tool("jobs")], tool_choice=choice)
    assert (use.choice, names(use.callable)) == (expected, callable)
    assert names(use.offered) == ["pods", "nodes", "jobs"]
    assert use.is_named == (choice == use_one("nodes"))


def test_clients_may_send_the_defaults_without_tools() -> None:
    assert use_of(tools=None, tool_choice="auto", parallel_tool_calls=False) == ToolUse()
    assert use_of(functions=None, function_call="none") == ToolUse()


def test_the_older_fields_are_the_same() -> None:
    functions = [{"name": "pods", "parameters": PARAMETERS}, {"name": "nodes"}]
    use = use_of(functions=functions)
    assert use == ToolUse(
        *((Tool("pods", parameters=PARAMETERS), Tool("nodes")),) * 2,
        choice=ToolChoice.AUTO,
        parallel=False,
        is_older_form=True,
    )
    use = use_of(functions=functions, function_call={"name": "nodes"})
    assert (use.choice, names(use.callable), use.is_named) == (ToolChoice.REQUIRED, ["nodes"], True)
    assert use_of(functions=functions, function_call="none").choice is ToolChoice.NONE


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"a": schema}
    return schema


MANY = [tool(f"f{index}") for index in range(MAX_TOOLS + 1)]
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "is missing"),
    ({"tools": [tool(), {"type": "function"}]}, "tools[1].function", "is missing"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "is missing"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "'custom' is not supported"),
    ({"tools": tool()}, "tools", "expected an array, got an object"),
    ({"tools": MANY}, "tools", "129 are too many, give at most 128"),
    ({"tools": [tool("")]}, "tools[0].function.name", "is not a name of a function"),
    ({"tools": [tool("a b")]}, "tools[0].function.name", "'a b' is not a name of a function"),
    ({"tools": [tool("a\n")]}, "tools[0].function.name", "is not a name of a function"),
    ({"tools": [tool("a" * 129)]}, "tools[0].function.name", "use 1 to 128 letters"),
    ({"tools": [tool(), tool("b"), tool()]}, "tools[2].function.name", "tools[0].function has the name 'pods'"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "expected an object"),
    ({"tools": [tool(parameters=nested(65))]}, "tools[0].function.parameters", "more than 64 levels"),
    (
        {"tools": [tool("b"), tool(parameters={"enum": [0] * MAX_SCHEMA_VALUES})]},
        "tools[1].function.parameters",
        "more than 50000 values",
    ),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict", "expected a boolean"),
    ({"tool_choice": "required"}, "tool_choice", "only allowed when tools are specified"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice", "only allowed when tools are specified"),
    ({"tool_choice": use_one("pods")}, "tool_choice", "only allowed when tools are specified"),
    ({"tools": [tool()], "tool_choice": "any"}, "tool_choice", "'any' is unknown, use none, auto, required"),
    ({"tools": [tool()], "tool_choice": use_one("x")}, "tool_choice.function.name", "'x' is not among the tools"),
    ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice.function", "is missing"),
    (
        {"tools": [tool()], "tool_choice": {"type": "allowed_tools"}},
        "tool_choice.allowed_tools",
        "is missing",
    ),
    (
        {"tools": [tool()], "tool_choice": {"type": "custom", "custom": {"name": "x"}}},
        "tool_choice.type",
        "'custom' is not supported, use 'function' or 'allowed_tools'",
    ),
    (
        {"tools": [tool()], "tool_choice": {**use_one("pods"), "type": "x"}},
        "tool_choice.type",
        "'x' is not supported",
    ),
    (
        {"tools": [tool()], "tool_choice": use_some("auto", "pods", "x")},
        "tool_choice.allowed_tools.tools[1].function.name",
        "'x' is not among the tools",
    ),
    ({"tools": [tool()], "tool_choice": use_some("auto")}, "tool_choice.allowed_tools.tools", "the list is empty"),
    ({"tools": [tool()], "tool_choice": use_some("none", "pods")}, "tool_choice.allowed_tools.mode", "'auto'"),
    ({"functions": [{"name": "a b"}]}, "functions[0].name", "is not a name of a function"),
    (
        {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
        "function_call.name",
        "not among the functions",
    ),
    ({"function_call": {"name": "g"}}, "function_call", "only allowed when functions are specified"),
    ({"functions": [{"name": "f"}], "tools": [tool()]}, "functions", "older form of tools"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "expected a boolean"),
]


@pytest.mark.parametrize(("fields", "param", "message"), CASES)
def test_tools_that_cannot_be_used_are_refused_by_name(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        use_of(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert message in caught.value.message


def test_limits_are_those_that_are_named() -> None:
    assert len(use_of(tools=MANY[:MAX_TOOLS]).offered) == 128
    assert use_of(tools=[tool("a" * 128)]).offered
    assert use_of(tools=[tool(parameters=nested(MAX_SCHEMA_DEPTH))]).offered
    assert use_of(tools=[tool(parameters={"enum": [0] * (MAX_SCHEMA_VALUES - 2)})]).offered


def test_values_are_counted_over_all_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCHEMA_VALUES", 10)
    half = {"enum": [1, 2, 3, 4]}
    assert use_of(tools=[tool(parameters=half)]).offered
    with pytest.raises(ApiError, match="more than 10 values") as caught:
        use_of(tools=[tool(parameters=half), tool("nodes", parameters=half)])
    assert caught.value.param == "tools[1].function.parameters"
