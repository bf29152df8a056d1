from collections.abc import Callable

import pytest

from kvasir.cli import engine, frontend
from kvasir.config.options import OptionParser


@pytest.mark.parametrize(
    ("parser", "option"), [(frontend.parser, "--api_key=k"), (engine.parser, "--link_keys=/tmp")]
)
def test_a_pod_takes_no_other_names_of_options(
    parser: Callable[[], OptionParser],
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They would set options that extraArgs must not set."""
    argv = ["demo://", "--link", "tcp://127.0.0.1:1", option]
    monkeypatch.setenv("KVASIR_MANAGED_VARIABLES", "KVASIR_LINK")
    with pytest.raises(SystemExit):
        parser().parse_args(argv)
    assert "unrecognized arguments" in capsys.readouterr().err
