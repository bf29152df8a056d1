"""The examples of manifests/: accepted by the schema, and by the processes that they start."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.cli import engine as engine_command
from kvasir.cli import frontend as frontend_command
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.api import KIND
from kvasir_contract.environment import DATA_PARALLEL_RANK
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.spec import parse_service
from operator_facts import RELEASE

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"
SERVICES: dict[str, dict[str, Any]] = {
    path.stem: document
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] == KIND
}


@pytest.mark.parametrize("name", SERVICES)
def test_an_example_starts_its_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_PARALLEL_RANK, "0")
    completed, problems = CRDSchema.of_crd().complete(SERVICES[name])
    assert not problems
    service = parse_service(completed)
    command, *args = engine_template(service, RELEASE, "")["spec"]["containers"][0]["args"]
    assert command == "engine"
    engine = engine_command.config_of(engine_command.parser().parse_args(args))
    assert engine.model.served_model_name == service.model.served_names
    command, *args = frontend_template(service, RELEASE, "")["spec"]["containers"][0]["args"]
    assert command == "frontend"
    frontend_command.config_of(frontend_command.parser().parse_args(args))
