import pytest

from e2e.load import mutable_fields, requests_client


def test_every_mutable_field_has_a_value_or_a_reason() -> None:
    assert set(mutable_fields.mutable_fields()) == set(mutable_fields.all_values())


def test_a_field_without_a_value_of_its_own_has_the_examples() -> None:
    assert "engine.longPrefillTokenThreshold" not in mutable_fields.VALUES
    assert mutable_fields.all_values()["engine.longPrefillTokenThreshold"] == 1024


def test_fields_that_a_rule_makes_immutable_are_left_out() -> None:
    fields = mutable_fields.mutable_fields()
    assert "engine.maxModelLen" in fields
    assert not {"model.source", "engine.dtype", "engine.kvCache.blockSize", "operatorClass"} & set(fields)


def test_changes_fail_for_a_field_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    values = dict(mutable_fields.VALUES)
    del values["frontend.pod.env"]
    monkeypatch.setattr(mutable_fields, "VALUES", values)
    with pytest.raises(AssertionError, match=r"frontend\.pod\.env"):
        mutable_fields.changes()


def test_the_load_client_sends_the_key_of_the_changed_service() -> None:
    assert requests_client.HEADERS["Authorization"] == f"Bearer {mutable_fields.KEY}"
