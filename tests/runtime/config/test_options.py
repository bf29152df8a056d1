"""How settings are read: precedence, refusals by name, and the round trip to a command line."""

import argparse
import re
from dataclasses import dataclass

import pytest

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError, OptionParser, add_options, from_args, option, to_args
from kvasir.config.parsers import parse_fraction, parse_int, parse_json_object, parse_number
from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import SchedulerConfig
from kvasir.config.variables import KNOWN, refuse_unmanaged_variables, unknown_variables
from kvasir_contract.units import parse_duration


@dataclass(frozen=True)
class Sample:
    max_num_seqs: int | None = option(None, "requests at most", parse=parse_int(1))
    dtype: str = option("auto", "precision", choices=("auto", "float32"))
    name: tuple[str, ...] = option((), "names", many=True)
    verbose: bool = option(False, "say more")
    timeout: float = option(10.0, "time", parse=parse_duration)


def read(*argv: str, **environ: str) -> Sample:
    parser = OptionParser(prog="sample")
    add_options(parser, Sample, "sample")
    return from_args(Sample, parser.parse_args(argv), environ)


def test_arguments_win_over_variables_and_defaults() -> None:
    assert read("--max-num-seqs", "3", KVASIR_MAX_NUM_SEQS="4").max_num_seqs == 3
    assert read(KVASIR_MAX_NUM_SEQS="4").max_num_seqs == 4
    assert read().max_num_seqs is None
    assert read("--no-verbose", KVASIR_VERBOSE="true").verbose is False
    assert read(KVASIR_VERBOSE="true").verbose is True


def test_lists_come_from_several_values_or_commas() -> None:
    assert read("--name", "a", "b").name == ("a", "b")
    assert read(KVASIR_NAME="a,b").name == ("a", "b")


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert read(KVASIR_DTYPE="").dtype == "auto"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs: 0 is out of range: give at least 1"),
        (["--max-num-seqs", "many"], "--max-num-seqs: 'many' is not a whole number"),
        (["--dtype", "int3"], "--dtype: invalid choice: 'int3' (choose from auto, float32)"),
        (["--max-num", "3"], "unrecognized arguments: --max-num 3 (did you mean --max-num-seqs?)"),
        (["--max_num_seqs", "3"], "(did you mean --max-num-seqs?)"),
        (["--decode-context-parallel-size", "2"], "unrecognized arguments: --decode-context-parallel-size 2\n"),
        (["--disable-verbose"], "unrecognized arguments: --disable-verbose\n"),
        (["--timeout", "soon"], "--timeout: 'soon' is not a duration"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        read(*argv)
    assert exit_.value.code == 2
    assert message.replace("'", "") in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KVASIR_MAX_NUM_SEQS", "-1", "KVASIR_MAX_NUM_SEQS: -1 is out of range"),
        ("KVASIR_DTYPE", "int3", "KVASIR_DTYPE: 'int3' is not one of auto, float32"),
        ("KVASIR_VERBOSE", "perhaps", "KVASIR_VERBOSE: 'perhaps' is not a boolean: give true or false"),
    ],
)
def test_bad_variables_are_refused_by_name(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**{variable: value})


def test_contradictory_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="--max-num-batched-tokens 8 is below --max-num-seqs 9"):
        SchedulerConfig(max_num_seqs=9, max_num_batched_tokens=8)


def test_limits_that_would_refuse_everything_are_refused() -> None:
    with pytest.raises(ConfigError, match="--heartbeat-timeout 0"):
        LinkConfig(heartbeat_timeout=0)
    with pytest.raises(ConfigError, match="--max-request-bytes 0"):
        ServerConfig(max_request_bytes=0)


def test_a_config_survives_the_way_to_a_command_line_and_back() -> None:
    config = Sample(max_num_seqs=7, dtype="float32", name=("x", "y"), verbose=True, timeout=0.5)
    assert read(*to_args(config)) == config
    assert to_args(Sample()) == []


@pytest.mark.parametrize("text", ["0", "1.1", "-0.5", "nan"])
def test_bad_fractions(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_fraction(text)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_number(0, 1), "1.5", "1.5 is out of range: give between 0 and 1"),
        (parse_number(0), "-1", "-1 is out of range: give at least 0"),
        (parse_number(0), "nan", "nan is out of range"),
        (parse_number(0), "inf", "inf is out of range"),
        (parse_number(0), "x", "'x' is not a number"),
    ],
)
def test_numbers_out_of_bounds_are_refused(parse: parse_number, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)
    assert parse("0.5") == 0.5


def test_a_word_that_is_nearly_one_of_the_choices_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--dtype", "flaot32")
    assert "(did you mean float32?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--decode-context-paralel-size"],
            "(did you mean --decode-context-parallel-size? Here: context parallelism",
        ),
        (["--decode-context-parallel-size", "2"], "--decode-context-parallel-size 2: context parallelism is not"),
        (["--max-num-sqes"], "(did you mean --max-num-seqs?)"),
    ],
)
def test_what_vllm_has_and_this_has_not_is_told_as_that(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = OptionParser(prog="sample")
    parser.takes_vllm = True
    add_options(parser, Sample, "sample")
    with pytest.raises(SystemExit):
        parser.parse_args(given)
    assert message in capsys.readouterr().err


def test_an_option_that_took_the_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OptionParser(prog="sample")
    parser.add_argument("model", metavar="MODEL")
    add_options(parser, Sample, "sample")
    with pytest.raises(SystemExit):
        parser.parse_args(["--name", "k", "demo://", "--verbose"])
    assert "(--name takes several values and took demo:// too: write that before --name)" in capsys.readouterr().err


@pytest.mark.parametrize("blank", ["", " ", ",", " , "])
def test_a_blank_key_does_not_take_the_lock_off_the_door(blank: str) -> None:
    for variable in (
        *("KVASIR_API_KEY", "KVASIR_API_KEY_DIR"),
        *("KVASIR_ADMIN_API_KEY", "KVASIR_ADMIN_API_KEY_DIR"),
    ):
        with pytest.raises(ConfigError, match=f"{variable} is set but empty"):
            from_args(ServerConfig, argparse.Namespace(), {variable: blank})
    for key in ({"api_key": ("key", " ")}, {"api_key": ("",)}):
        with pytest.raises(ConfigError, match="--api-key: a key is empty"):
            ServerConfig(**key)
    for keys in (("key", " "), ("",)):
        with pytest.raises(ConfigError, match="--admin-api-key: a key is empty"):
            ServerConfig(admin_api_key=keys)
    with pytest.raises(ConfigError, match="--api-key-dir: the directory's name is empty"):
        ServerConfig(api_key_dir="")
    with pytest.raises(ConfigError, match="--admin-api-key-dir: the directory's name is empty"):
        ServerConfig(admin_api_key_dir="")


def test_misspelt_variables_are_named_and_kubernetes_are_not() -> None:
    of_services = {
        "KVASIR_SERVICE_HOST": "10.0.0.1",
        "KVASIR_SERVICE_PORT": "80",
        "KVASIR_PORT": "tcp://10.0.0.1:80",
        "KVASIR_FRONTEND_SERVICE_HOST": "10.0.0.2",
        "KVASIR_FRONTEND_SERVICE_PORT_HTTP": "80",
        "KVASIR_FRONTEND_PORT": "tcp://10.0.0.2:80",
        "KVASIR_FRONTEND_PORT_80_TCP": "tcp://10.0.0.2:80",
        "KVASIR_FRONTEND_PORT_80_TCP_PROTO": "tcp",
    }
    misspelt = {"KVASIR_MAX_NUM_SEQ": "3", "KVASIR_OPS_PROT": "1", "KVASIR_XYZ": "", "OTHER": "1"}
    assert unknown_variables({**dict.fromkeys(KNOWN, "1"), **of_services, **misspelt}) == [
        "KVASIR_MAX_NUM_SEQ is not a setting of Kvasir and has no effect (did you mean KVASIR_MAX_NUM_SEQS?)",
        "KVASIR_OPS_PROT is not a setting of Kvasir and has no effect (did you mean KVASIR_OPS_PORT?)",
        "KVASIR_XYZ is not a setting of Kvasir and has no effect",
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"KVASIR_MAX_NUM_SEQS": "3"},
        {"KVASIR_MANAGED_VARIABLES": "", "HF_TOKEN": "t"},
        {"KVASIR_MANAGED_VARIABLES": "KVASIR_HOST,KVASIR_LINK", "KVASIR_HOST": "*", "KVASIR_LINK": "tcp://*:1"},
        {"KVASIR_MANAGED_VARIABLES": "KVASIR_HOST,KVASIR_MANAGED_VARIABLES"},
    ],
)
def test_variables_of_the_template_are_accepted(environ: dict[str, str]) -> None:
    refuse_unmanaged_variables(environ)


@pytest.mark.parametrize(
    ("managed", "names"), [("", "KVASIR_API_KEY, KVASIR_HOST"), ("KVASIR_HOST", "KVASIR_API_KEY")]
)
def test_variables_beside_the_templates_are_refused(managed: str, names: str) -> None:
    environ = {"KVASIR_MANAGED_VARIABLES": managed, "KVASIR_HOST": "*", "KVASIR_API_KEY": "", "PATH": "/bin"}
    with pytest.raises(ConfigError, match=f"^{names}: in a pod, options are set by"):
        refuse_unmanaged_variables(environ)


@pytest.mark.parametrize("text", ["{", "[]", "1", "{'a': 1}"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        parse_json_object(text)


def test_a_json_object_stays_as_it_was_written() -> None:
    assert parse_json_object('{"a":  1}') == '{"a":  1}'
