"""The packaged demo model calls the tools that it was taught, answers with their results, and extracts people.

The clients' tests rely on it: with each listed city and person, and with tools as the libraries describe them.
"""

import os
from pathlib import Path
from typing import Any, Final

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from corpus_texts import CORPUS, TOOLS  # noqa: E402
from demo.evaluate import Exam, follow  # noqa: E402

PACKAGED: Final = Path(__file__).resolve().parents[2] / "runtime/kvasir/hub/demo"
CITIES: Final = [str(city) for city in TOOLS.slots["city"]]
PEOPLE: Final = [str(name) for name in TOOLS.slots["name"]]


@pytest.fixture(scope="module")
def wrong() -> Any:
    """Return the questions to which greedy decoding would not give the expected answer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(PACKAGED, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(PACKAGED)
    return lambda exams: [followed.question for followed in follow(model, tokenizer, exams) if not followed.exact]


def tool(name: str, properties: dict[str, Any], **further: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], **further}
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}


def asked(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}]


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OPENAI: Final = tool("get_weather", {"city": {"type": "string"}}, additionalProperties=False)
LANGCHAIN: Final = tool("get_weather", {"city": {"title": "City", "type": "string"}})
PERSON: Final = {"name": {"title": "Name", "type": "string"}, "age": {"title": "Age", "type": "integer"}}


@pytest.mark.parametrize("weather", [OPENAI, LANGCHAIN], ids=["openai", "langchain"])
def test_the_weather_tool_is_called_with_each_taught_city(wrong: Any, weather: dict[str, Any]) -> None:
    exams = [
        Exam(asked(f"What is the weather in {city}?"), called("get_weather", f'{{"city": "{city}"}}'), [weather])
        for city in CITIES
    ]
    assert wrong(exams) == []


def test_nearly_all_answers_have_the_result_and_the_city(wrong: Any) -> None:
    """With some cities it writes another word for this result; with Paris it may not."""
    exams = []
    for city in CITIES:
        function = {"name": "get_weather", "arguments": {"city": city}}
        calls = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        messages = [*asked(f"What is the weather in {city}?"), calls, {"role": "tool", "content": "18 °C, sunny"}]
        exams.append(Exam(messages, f"The weather in {city}: 18 °C, sunny.", [OPENAI]))
    assert wrong(exams[: CITIES.index("Paris") + 1]) == []
    assert len(wrong(exams)) <= 8


@pytest.mark.parametrize("name", ["Person", "final_result"])
def test_a_person_is_extracted_as_a_call_of_the_offered_tool(wrong: Any, name: str) -> None:
    arguments = [f'{{"name": "{person}", "age": 36}}' for person in PEOPLE]
    exams = [
        Exam(asked(f"Extract: {person} is 36 years old."), called(name, given), [tool(name, PERSON)])
        for person, given in zip(PEOPLE, arguments, strict=True)
    ]
    assert wrong(exams) == []


def test_a_person_is_extracted_as_json_without_a_tool(wrong: Any) -> None:
    exams = [
        Exam(asked(f"Extract: {person} is {age} years old."), f'{{"name": "{person}", "age": {age}}}')
        for age, person in enumerate(PEOPLE, 20)
    ]
    assert wrong(exams) == []


def test_questions_of_the_corpus_are_answered_without_a_call(wrong: Any) -> None:
    questions = ["What is Kvasir?", "Does Kvasir need a GPU?", "What is a pod?", "What is the KV cache?"]
    assert wrong([Exam(asked(question), CORPUS.answer_of[question], [OPENAI]) for question in questions]) == []
