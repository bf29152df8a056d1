"""Command lines of `vllm serve`: kept, rewritten, left out with a note, or rejected with the reason."""

import argparse
import json
from pathlib import Path

import pytest

from kvasir.cli import bench, engine, frontend, run_batch, serve
from kvasir.config.options import OptionParser
from kvasir.config.vllm.arguments import Rewritten, rewrite
from kvasir.config.vllm.given_options import vllm_options
from kvasir.config.vllm.verdicts import IGNORED, MAPPED, NEUTRAL, READ, REFUSED, UNSET

OWN = serve.parser()._option_string_actions


def rewritten(*words: str) -> Rewritten:
    return rewrite(words, OWN)


def parsed(*words: str) -> argparse.Namespace:
    return serve.parser().parse_args(words)


def test_every_option_of_vllm_has_exactly_one_verdict() -> None:
    for name in vllm_options():
        verdicts = [table for table in (MAPPED, IGNORED, REFUSED) if name in table]
        assert len(verdicts) <= 1, name
        assert verdicts or name in OWN or name in READ, name
    assert not {*MAPPED, *IGNORED, *REFUSED, *READ} - set(vllm_options())
    assert not {*MAPPED, *IGNORED, *REFUSED} & OWN.keys(), "they have the same name here now: remove their verdicts"
    assert set(NEUTRAL) <= {*REFUSED, *MAPPED}
    assert set(UNSET) <= engine.parser()._option_string_actions.keys() & set(vllm_options())
    assert set(MAPPED.values()) <= set(OWN)


def test_a_conversion_to_nothing_keeps_the_runner() -> None:
    for words in (("--runner", "pooling", "--convert", "none"), ("--convert=auto", "--runner=pooling")):
        assert parsed("demo://", *words).task == "pool"


@pytest.mark.parametrize("name", ["--rope-scaling", "--rope-theta", "--disable-sliding-window"])
def test_options_that_change_config_json_name_hf_overrides(name: str) -> None:
    text = REFUSED[name].replace("NUMBER", "1").replace("…", "")
    assert text.startswith("use --hf-overrides '")
    for example in text.split("'")[1::2]:
        assert parsed("demo://", "--hf-overrides", example).hf_overrides == example


@pytest.mark.parametrize("parser", [serve.parser(), engine.parser(), frontend.parser()], ids=lambda it: it.prog)
def test_no_option_of_vllm_is_unknown(parser: OptionParser, capsys: pytest.CaptureFixture[str]) -> None:
    for name, facts in vllm_options().items():
        if name in (*parser._option_string_actions, "--config", "--model"):
            continue
        values = [] if facts["takes"] in ("nothing", "switch", "optional") else ["1"]
        try:
            parser.parse_args(["demo://", name, *values])
        except SystemExit:
            message = capsys.readouterr().err
            assert name in message or MAPPED.get(name, "?") in message, name
            assert "unrecognized" not in message, name
            assert "did you mean" not in message, name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--model gpt2", "gpt2"),
        ("-tp 2 --model=gpt2 --port 1", "gpt2 -tp 2 --port 1"),
        ("gpt2 --max_model_len 32k", "gpt2 --max-model-len 32k"),
        ("gpt2 --max_model_len=32k", "gpt2 --max-model-len 32k"),
        ("gpt2 --revision main", "gpt2@main --served-model-name gpt2"),
        ("o/n --revision v1 --served-model-name x", "o/n@v1 --served-model-name x"),
        ("--model o/n --revision v1", "o/n@v1 --served-model-name o/n"),
        ("./dir --revision v1", "./dir"),
        ("hf://o/n@v1 --revision v2", "hf://o/n@v1"),
        ("m --enable-log-requests", "m --log-requests"),
        ("m --no-enable-log-requests", "m --no-log-requests"),
        ("m --no-disable-log-requests", "m --log-requests"),
        ("m --shutdown-timeout 30", "m --drain-timeout 30"),
        ("m --device-memory-utilization 0.5", "m --gpu-memory-utilization 0.5"),
        ("m --max-model-len -1", "m --max-model-len=-1"),
        ('m --allowed-origins ["https://a","https://b"]', "m --allowed-origins https://a https://b"),
        ("m --prefix-caching-hash-algo sha256_cbor", "m --prefix-caching-hash-algo sha256"),
        ("m --log-level INFO", "m --log-level info"),
        ("m -ep -dpl 1 --no-enable-dbo", "m --enable-expert-parallel"),
        ("m --seed 3 -- --x_y", "m --seed 3 -- --x_y"),
        ("m --not_ours 3", "m --not-ours 3"),
    ],
)  # fmt: skip
def test_options_of_vllm_become_options_of_kvasir(given: str, words: str) -> None:
    found = rewritten(*given.split())
    assert found.words == words.split()
    assert found.notes == []


def test_a_repeated_option_of_vllm_has_all_values() -> None:
    found = rewritten("m", "--middleware", "a.A", "--port", "1", "--middleware=b.B")
    assert found.words == ["m", "--middleware", "a.A", "b.B", "--port", "1"]


def test_a_command_with_an_option_of_the_name_model_keeps_it() -> None:
    args = run_batch.parser().parse_args(["-i", "in", "-o", "out", "--model", "m", "--max_num_seqs", "3", "-O3"])
    assert (args.model, args.max_num_seqs, len(args.notes)) == ("m", 3, 1)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ("-O3", "--optimization-level 3 has no effect"),
        ("-O 3", "--optimization-level 3 has no effect"),
        ("-O", "--optimization-level has no effect"),
        ("--attention-config.a.b+ x,y", '--attention-config {"a": {"b": ["x", "y"]}} has no effect'),
        ("--swap-space 4", "--swap-space 4 has no effect"),
        ("--max-seq-len-to-capture 8192", "--max-seq-len-to-capture 8192 has no effect: give the sizes in"),
        ("--use-v2-block-manager", "--use-v2-block-manager has no effect"),
        ("--no-enable-chunked-prefill", "--no-enable-chunked-prefill has no effect: long prompts are always"),
        ("--cudagraph_capture_sizes 1 2 4", "--cudagraph-capture-sizes 1 2 4 has no effect"),
        ("--response_role=assistant --log-error-stack", "--log-error-stack has no effect"),
    ],
)
def test_options_without_effect_are_named(given: str, note: str) -> None:
    found = rewritten("m", *given.split())
    assert found.words == ["m"]
    assert len(found.notes) == 1
    assert found.notes[0].startswith(note)
    assert parsed("m", *given.split()).notes == found.notes


@pytest.mark.parametrize(
    "given",
    [
        "--spec-method ngram --spec-tokens=3",
        '-sc {"method":"ngram"} --spec-tokens 3',
        '--speculative-config.num_speculative_tokens 3 --speculative-config {"method":"ngram"}',
    ],
)
def test_fields_of_speculation_have_options_of_their_own(given: str) -> None:
    read = json.loads(parsed("m", *given.split()).speculative_config)
    assert read == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize("given", ["-O.level=3", "--compilation-config.level 3", '-cc {"level":3}'])
def test_fields_with_dots_are_read_as_json(given: str) -> None:
    assert json.loads(parsed("m", *given.split()).compilation_config) == {"level": 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--cpu-offload-gb 4", "--cpu-offload-gb 4: weights stay on their device: use a smaller model"),
        ("--hf-token hf_secret", "--hf-token: every user of the machine can read arguments"),
        ("--nnodes 2", "--nnodes 2: is an option of kvasir engine"),
        ("--config /no/such.yaml", "--config /no/such.yaml cannot be read: No such file"),
        ("--config config.json", "--config config.json: give a YAML file"),
        ("--revision", "--revision take a value"),
        ("--enable-prefix-caching=true", "--enable-prefix-caching takes no value, and got 'true'"),
    ],
)
def test_rejected_options_say_why_and_end_with_code_2(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parsed("m", *given.split())
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "hf_secret" not in printed


def test_a_key_for_a_command_without_a_server_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        engine.parser().parse_args(["m", "--api-key", "secret"])
    printed = capsys.readouterr().err
    assert "--api-key: is not an option of this command" in printed
    assert "secret" not in printed


@pytest.mark.parametrize(
    "words", [("--seed", "--port", "1"), ("--port", "1", "--seed"), ("--seed", "--max_model_len=5")]
)
def test_an_option_without_its_value_is_named(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("m", *words)
    assert "argument --seed: expected one argument" in capsys.readouterr().err


def test_a_value_may_begin_with_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("m", "--seed", "-5").seed == -5
    assert parsed("m", "--root-path", "--odd", "--port", "1").root_path == "--odd"


def test_a_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "model: gpt2\nmax_model_len: 64\nport: 12323\nenable-prefix-caching: false\nenable-lora: false\n"
        "served-model-name: [a, b]\nattention-config: {level: 3}\nseed:\n"
    )
    args = parsed("--config", str(file), "--port", "1")
    assert (args.model, args.max_model_len, args.port) == ("gpt2", 64, 1)
    assert args.enable_prefix_caching is False
    assert args.served_model_name == ["a", "b"]
    assert [note.split(" has ")[0] for note in args.notes] == ['--attention-config {"level": 3}']
    other = parsed("other", "--port", "2", f"--config={file}")
    assert (other.model, other.port, other.max_model_len) == ("other", 2, 64)
    assert parsed("--model", "other", "--config", str(file)).model == "other"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a", "give names of options"),
        ("a: [", "is not YAML"),
        ("cpu-offload-gb: 4", "--cpu-offload-gb 4: weights"),
        ("seed: 1\nport: 1\nport: 2", "--port is there twice"),
        ("max_model_len: 8\nmax-model-len: 9", "--max-model-len is there twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yml"
    file.write_text(content)
    with pytest.raises(SystemExit):
        parsed("m", "--config", str(file))
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words", "place"),
    [
        ("seed: 1\nblock-size: 3.5", "", "(FILE, line 2)"),
        ("seed: 1\n\nmax_modl_len: 3", "", "(FILE, line 3)"),
        ("cpu-offload-gb: 4", "", "(FILE, line 1)"),
        ("enforce-eager: 3", "", "(FILE, line 1)"),
        ("seed: 1", "--block-size 3.5", "whole number\n"),
        ("block-size: 16", "--block-size 4.5", "'4.5' is not a whole number\n"),
    ],
)
def test_an_error_of_a_config_file_names_the_line(
    content: str, words: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yml"
    file.write_text(content)
    with pytest.raises(SystemExit):
        parsed("m", "--config", str(file), *words.split())
    assert place.replace("FILE", str(file)) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "tokens"), [("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("1m", 10**6), ("auto", None), ("7", 7)]
)
def test_lengths_are_written_as_in_vllm(text: str, tokens: int | None) -> None:
    assert parsed("m", "--max-model-len", text).max_model_len == tokens


@pytest.mark.parametrize("text", ["1.5K", "0", "-2", "k", "32x"])
def test_lengths_that_are_none_are_rejected(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("m", "--max-model-len", text)
    assert "--max-model-len" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "dtype"), [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")])
def test_precisions_have_vllms_short_names(text: str, dtype: str) -> None:
    assert parsed("m", "--dtype", text).dtype == dtype


def test_the_list_holds_what_is_known_of_vllms_newest_release() -> None:
    newest = [name for name, facts in vllm_options().items() if facts.get("last") == "0.33.0"]
    assert len(newest) > 300
    assert vllm_options()["--tensor-parallel-size"]["short"] == ["-tp"]
    assert vllm_options()["--headless"]["takes"] == "nothing"
    assert vllm_options()["--served-model-name"]["takes"] == "values"


def test_benchmarks_of_an_engine_read_the_same_options() -> None:
    args = bench.parser().parse_args(["latency", "--model", "m", "--max_num_seqs", "3", "--enforce-eager", "-O3"])
    assert (args.model, args.max_num_seqs, len(args.notes)) == ("m", 3, 1)
    assert args.enforce_eager


@pytest.mark.parametrize("text", ["4GB", "32 k", "long"])
def test_a_wrong_number_of_tokens_is_told_with_accepted_forms(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("m", "--max-model-len", text)
    assert (
        "is not a number of tokens: give one such as 32768, 32k (32,000) or 32K (32,768)" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", UNSET)
def test_a_value_for_not_set_in_vllm_leaves_the_option_out(name: str) -> None:
    assert rewritten("demo://", f"{name}={UNSET[name]}").words == ["demo://"]
    assert rewritten("demo://", name, "7").words == ["demo://", name, "7"]
