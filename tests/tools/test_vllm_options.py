"""The generator of the list of vLLM's options, on small sources, and the page that is generated from the list."""

import zipfile
from pathlib import Path

import pytest
from tools.vllm_options import TABLE, merged, options_of, takes_of
from tools.vllm_table import page

CLI_ARGS = '''
class FrontendArgs:
    """Server."""
    allowed_origins: list[str] = None
    middleware: list[str] = None
    ssl_keyfile: str | None = None

def make_arg_parser(parser):
    parser.add_argument("model_tag")
    parser.add_argument("--headless", action="store_true")

def another(parser):
    parser.add_argument("--not-of-serve")
'''
CONFIG = """
class SchedulerConfig:
    policy: str = "fcfs"
    chunked: bool = True
    sizes: list[int] | None = None
"""
ARG_UTILS = """
def add_cli_args(parser):
    kwargs = get_kwargs(SchedulerConfig)
    parser.add_argument("--policy", "-p", **kwargs["policy"])
    parser.add_argument("--chunked", **{**kwargs["chunked"], "default": None})
    parser.add_argument("--sizes", **kwargs["sizes"])
"""


def test_options_are_read_from_the_sources_of_a_release(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/entrypoints/openai/cli_args.py", CLI_ARGS)
        archive.writestr("vllm/config/scheduler.py", CONFIG)
        archive.writestr("vllm/engine/arg_utils.py", ARG_UTILS)
    found = options_of(wheel)
    assert {name: facts["takes"] for name, facts in found.items()} == {
        "--policy": "value",
        "--chunked": "switch",
        "--sizes": "values",
        "--headless": "nothing",
        "--allowed-origins": "value",
        "--middleware": "repeated",
        "--ssl-keyfile": "value",
    }
    assert found["--policy"]["short"] == ["-p"]


@pytest.mark.parametrize(
    ("annotation", "takes"),
    [
        ("bool", "switch"),
        ("Optional[bool]", "switch"),
        ("bool | None", "switch"),
        ("bool | str | None", "optional"),
        ("str | list[str] | None", "values"),
        ("dict[str, list[bool]]", "value"),
        ("int | None", "value"),
    ],
)
def test_annotations_say_what_an_option_takes(annotation: str, takes: str) -> None:
    assert takes_of(annotation) == takes


def test_an_option_keeps_its_first_and_last_release() -> None:
    facts: dict[str, object] = {"short": [], "takes": "value"}
    found = merged({"0.9.0": {"--a": facts, "--b": facts}, "0.11.0": {"--b": facts}})
    assert [(each["first"], each["last"]) for each in found.values()] == [("0.9.0", "0.9.0"), ("0.9.0", "0.11.0")]


def test_the_page_is_the_one_that_the_command_line_gives() -> None:
    assert TABLE.read_text() == page(), "run: python -m tools.vllm_options table"
