"""The tool formats that come with Kvasir, with the names that vLLM has for them."""

from dataclasses import replace
from typing import Final

from kvasir.frontend.parsers.formats.descriptions import Body, HarmonyFormat, Layout, ToolFormat

HARMONY_TOOLS: Final = HarmonyFormat("openai")

HERMES: Final = ToolFormat(
    name="hermes",
    layouts=(Layout(Body.JSON_OBJECT),),
    openings=("<tool_call>",),
    space="\n",
    closing="</tool_call>",
    markers=("<tool_call>", "arguments"),
    not_markers=("<function=", "<arg_key>", "<|channel|>", "<|tool_call|>"),
    sample='<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
)
QWEN3_CODER: Final = ToolFormat(
    name="qwen3_coder",
    layouts=(Layout(Body.XML),),
    openings=("<tool_call>",),
    space="\n",
    closing="</tool_call>",
    markers=("<tool_call>", "<function=", "<parameter="),
    sample="<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
)
LLAMA3_JSON: Final = ToolFormat(
    name="llama3_json",
    layouts=(Layout(Body.JSON_OBJECT, several=True, separator=";", arguments_key="parameters"),),
    openings=("<|python_tag|>",),
    bare=True,
    markers=("<|start_header_id|>", "parameters", "tool_call"),
    not_markers=("<tool_call>",),
    sample='{"name": "f", "parameters": {"a": 1}}',
)
PYTHONIC: Final = ToolFormat(
    name="pythonic",
    layouts=(Layout(Body.PYTHON, array=True),),
    openings=("<|python_start|>",),
    closing="<|python_end|>",
    bare=True,
    sample="[f(a=1)]",
)
MISTRAL: Final = ToolFormat(
    name="mistral",
    layouts=(
        Layout(
            Body.NAMED_JSON,
            id_mark="[CALL_ID]",
            name_end="[ARGS]",
            name_end_is_optional=True,
            token="[ARGS]",
        ),
        Layout(Body.JSON_OBJECT, array=True, first="[{"),
    ),
    openings=("[TOOL_CALLS]",),
    between="",
    markers=("[TOOL_CALLS]",),
    sample='[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
)
DEEPSEEK_V3: Final = ToolFormat(
    name="deepseek_v3",
    layouts=(
        Layout(
            Body.NAMED_JSON,
            several=True,
            call_opening="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            name_end="\n```json\n",
            call_closing="\n```<｜tool▁call▁end｜>",
        ),
    ),
    openings=("<｜tool▁calls▁begin｜>",),
    closing="<｜tool▁calls▁end｜>",
    markers=("<｜tool▁calls▁begin｜>", "```json"),
    sample="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
)
DEEPSEEK_V31: Final = ToolFormat(
    name="deepseek_v31",
    layouts=(
        Layout(
            Body.NAMED_JSON,
            several=True,
            call_opening="<｜tool▁call▁begin｜>",
            name_end="<｜tool▁sep｜>",
            call_closing="<｜tool▁call▁end｜>",
        ),
    ),
    openings=("<｜tool▁calls▁begin｜>",),
    closing="<｜tool▁calls▁end｜>",
    markers=("<｜tool▁calls▁begin｜>",),
    not_markers=("```json",),
    sample='<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
)
GRANITE: Final = ToolFormat(
    name="granite",
    layouts=(Layout(Body.JSON_OBJECT, array=True),),
    openings=("<|tool_call|>", "<tool_call>"),
    other_closings=("</tool_call>",),
    bare=True,
    markers=("<|tool_call|>", "<|start_of_role|>"),
    sample='<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]',
)

# A format without markers is another name of one that has them: detection finds that one.
TOOL_FORMATS: Final[tuple[ToolFormat | HarmonyFormat, ...]] = (
    HERMES,
    QWEN3_CODER,
    replace(HERMES, name="granite4", markers=()),
    replace(QWEN3_CODER, name="qwen3_xml", markers=()),
    replace(QWEN3_CODER, name="mimo", markers=()),
    LLAMA3_JSON,
    replace(LLAMA3_JSON, name="llama4_json", markers=()),
    PYTHONIC,
    replace(PYTHONIC, name="llama4_pythonic", markers=("<|python_start|>",)),
    MISTRAL,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    GRANITE,
    HARMONY_TOOLS,
)
