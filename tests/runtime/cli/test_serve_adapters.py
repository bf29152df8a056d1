"""`kvasir serve --lora-modules`: frontends get the names, and engines accept adapters."""

from contextlib import closing
from pathlib import Path

import pytest

from kvasir.cli import serve
from kvasir.config.options import ConfigError
from kvasir.local.place import open_place
from runtime.cli.test_serve import args_of, specs_of
from runtime.hub.adapters.adapter_files import write_adapter


@pytest.mark.parametrize("word", ["sql=/some/path", '{"name": "sql", "path": "/some/path"}'])
def test_named_adapters_are_accepted_by_engines_too(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1)) as place:
        frontend, engine = specs_of(place, "demo://", "--lora-modules", word, "--max-lora-rank", "64")
    assert args_of(frontend)[1:3] == ["--lora-modules", word]
    assert args_of(engine)[1:] == ["--enable-lora", "--max-lora-rank", "64"]


def test_an_adapter_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "sql", rank=32)
    for source, words in (
        ("/no/such", "/no/such does not exist"),
        (str(adapter), "rank 32, and --max-lora-rank is 16"),
    ):
        args = serve.parser().parse_args(["demo://", "--lora-modules", f"sql={source}"])
        with pytest.raises(ConfigError, match=f"--lora-modules sql: .*{words}"):
            serve.check_settings(serve.settings_of(args))
    args = serve.parser().parse_args(["demo://", "--lora-modules", f"demo://={adapter}"])
    with pytest.raises(ConfigError, match="--lora-modules demo://: this is a name of the model"):
        serve.check_settings(serve.settings_of(args))
