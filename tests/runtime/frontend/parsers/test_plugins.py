import importlib
import re
import sys
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.frontend.parsers import Parsers, ToolChoice
from kvasir.frontend.parsers.parsed import Tool
from runtime.frontend.parsers.grammar_walks import Walker
from runtime.frontend.parsers.outputs import TOKENIZER, calls, content, parse, reasoning

DOCUMENT = Path(__file__).parents[4] / "docs" / "design" / "adding-a-parser.md"
OUTPUT = '<plan>Look.</plan>Now: <call>weather(){"city": "Oslo"}</call> <call>now(){}</call>'


def example() -> str:
    match = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert match
    return match[1]


def check_example(made: Parsers) -> None:
    events = parse(made, OUTPUT, tools=[Tool("weather"), Tool("now")])
    assert (reasoning(events), content(events)) == ("Look.", "Now:")
    assert calls(events) == [("weather", '{"city": "Oslo"}'), ("now", "{}")]


def choose(file: Path) -> Parsers:
    return Parsers.choose(None, TOKENIZER, "my_model", "my_plans", plugins=[file])


def test_example_of_the_document_works(tmp_path: Path) -> None:
    file = tmp_path / "my_formats.py"
    file.write_text(example())
    check_example(choose(file))
    check_example(Parsers.choose("<call> <plan>", TOKENIZER, None, None, plugins=[file]))
    weather = Tool("weather", parameters={"properties": {"city": {}}})
    forced = choose(file).constraint(
        tools=[weather],
        choice=ToolChoice.REQUIRED,
        parallel=False,
        prompt_tail="",
        answer=None,
        thinking_budget=None,
    )
    assert forced is not None
    assert forced.grammar is not None
    assert Walker(TOKENIZER).accepts(forced.grammar.text, '<plan>a</plan><call>weather(){"city": "Oslo"}</call>')


def test_closing_mark_of_letters_is_not_a_second_name(tmp_path: Path) -> None:
    file = tmp_path / "my_formats.py"
    file.write_text(example().replace("</call>", "END"))
    for text in (OUTPUT.replace("</call>", "END"), OUTPUT.replace("</call>", " END")):
        events = parse(choose(file), text, tools=[Tool("weather"), Tool("now")])
        assert content(events) == "Now:"
        assert [name for name, _ in calls(events)] == ["weather", "now"]


def test_entry_points_are_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvasir_test_formats.py").write_text(example())
    metadata = tmp_path / "kvasir_test_formats-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvasir-test-formats\nVersion: 1\n")
    points = "[kvasir.tool_parsers]\nmy_model = kvasir_test_formats:TOOL\n"
    points += "[kvasir.reasoning_parsers]\nmy_plans = kvasir_test_formats:REASONING\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kvasir_test_formats", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=r"my_model \(kvasir_test_formats:TOOL\).*AttributeError.*uninstall"):
        Parsers.choose(None, TOKENIZER, None, None)
    monkeypatch.delitem(sys.modules, "kvasir_test_formats", raising=False)
    source = example() + "\n(TOOL,), (REASONING,) = TOOL_FORMATS, REASONING_FORMATS\n"
    (tmp_path / "kvasir_test_formats.py").write_text(source + "# another size than the file before\n")
    check_example(Parsers.choose(None, TOKENIZER, "my_model", "my_plans"))


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("from vllm.tool_parsers import ToolParserManager", "a plug-in for vLLM"),
        ("X = 1", "neither TOOL_FORMATS nor REASONING_FORMATS"),
        ("TOOL_FORMATS = [1]", "1 is neither a ToolFormat"),
        (example().replace('"my_model"', '"hermes"'), "the name hermes is taken"),
        (example().replace('"my_plans"', '"qwen3"'), "the name qwen3 is taken"),
        (example().replace('f(){"a": 1}', 'f{"a": 1}'), "has to be one call, and is parsed as ContentText"),
        (example().replace('sample=', "space="), "has no sample"),
        (example().replace('openings=("<call>",)', "openings=()"), "has no openings"),
        (example().replace('name_end="()"', 'name_end=""'), "needs a name_end"),
        (example().replace('starts=("<plan>",)', 'starts=("",)'), "needs starts and ends"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_named(source: str, cause: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    with pytest.raises(ConfigError, match=re.escape(cause)) as caught:
        choose(file)
    assert str(caught.value).startswith(f"--tool-parser-plugin {file}")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.py: there is no such file"):
        choose(tmp_path / "nothing.py")
