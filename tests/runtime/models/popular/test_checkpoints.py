"""Checkpoints that people load are served, or refused, as docs/checkpoints.md shows."""

from pathlib import Path

import pytest

from kvasir.hub.hub_errors import HubError
from kvasir.models.decoder import Decoder
from kvasir.models.model_load_error import ModelLoadError
from runtime.models.popular.rebuild import entries, rebuilt
from runtime.worker.driver import Driver, greedy

ENTRIES = entries()


@pytest.mark.parametrize("name", list(ENTRIES))
def test_checkpoint_is_served_as_documented(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    if entry["served"] == "refused":
        with pytest.raises((HubError, ModelLoadError), match=entry["reason"]):
            Driver.load(rebuilt(entry, tmp_path / "model"), max_num_seqs=4)
        return
    driver = Driver.load(rebuilt(entry, tmp_path / "model"), max_num_seqs=4)
    native = isinstance(driver.worker._model, Decoder)  # type: ignore[attr-defined]
    assert ("natively" if native else "by transformers") == entry["served"]
    driver.add("r", [5, 6, 7], greedy(3))
    tokens = driver.run()["r"]
    assert len(tokens) == 3
    assert min(tokens) >= 0, "NaN"
