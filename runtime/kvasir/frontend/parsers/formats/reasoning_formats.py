"""The reasoning formats that come with Kvasir, with the names that vLLM has for them."""

from dataclasses import replace
from typing import Final

from kvasir.frontend.parsers.formats.descriptions import HarmonyFormat, ReasoningFormat

HARMONY_REASONING: Final = HarmonyFormat("openai_gptoss")

THINK: Final = ReasoningFormat("think", starts=("<think>",), ends=("</think>",))
QWEN3: Final = replace(THINK, name="qwen3", markers=("<think>", "</think>"), not_markers=("<｜Assistant｜>",))
DEEPSEEK_R1: Final = replace(THINK, name="deepseek_r1", assumed=True)

# A format without markers is chosen by its name only.
REASONING_FORMATS: Final[tuple[ReasoningFormat | HarmonyFormat, ...]] = (
    THINK,
    QWEN3,
    replace(DEEPSEEK_R1, markers=("</think>", "<｜Assistant｜>")),
    replace(THINK, name="deepseek_v3"),
    replace(THINK, name="glm45"),
    replace(THINK, name="glm47"),
    replace(THINK, name="mimo"),
    replace(DEEPSEEK_R1, name="minimax_m2"),
    ReasoningFormat(
        "granite",
        starts=("Here is my thought process:", "Here's my thought process:"),
        ends=("Here is my response:", "Here's my response:"),
        markers=("Here is my thought process:", "Here is my response:"),
    ),
    ReasoningFormat("mistral", starts=("[THINK]",), ends=("[/THINK]",), markers=("[THINK]", "[/THINK]")),
    ReasoningFormat(
        "seed_oss",
        starts=("<seed:think>",),
        ends=("</seed:think>",),
        markers=("<seed:think>", "</seed:think>"),
    ),
    HARMONY_REASONING,
)
