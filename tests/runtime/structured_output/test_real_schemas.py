"""Schemas that packages ship, and those of their pydantic models: refused by name, or random outputs validate.

Run with -rP to see the counts. Of the models of client libraries every fourth is tried, beginning with another one
each day, or all with HYPOTHESIS_PROFILE=full.
"""

import importlib
import inspect
import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from pydantic import PydanticSchemaGenerationError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from kvasir.client.request_errors import InvalidRequest
from kvasir.grammar_bounds import KEYWORDS, BadGrammar
from runtime.structured_output.guided import Guided

FILES: Final = (
    "setuptools/config/setuptools.schema.json",
    "setuptools/config/distutils.schema.json",
    "schemathesis/config/schema.json",
    "jsonschema_specifications/schemas/draft4/metaschema.json",
    "jsonschema_specifications/schemas/draft6/metaschema.json",
    "jsonschema_specifications/schemas/draft7/metaschema.json",
    "jsonschema_specifications/schemas/draft202012/metaschema.json",
)
MODULES: Final = ("openai.types", "openai.types.chat", "openai.types.responses", "anthropic.types")
CRD: Final = Path("crds/inferenceservices.serving.kvasir.dev.yaml")
MAX_BYTES: Final = 2_500
SHARE: Final = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 4


def of_files() -> Iterator[tuple[str, Any]]:
    for name in FILES:
        package, _, rest = name.partition("/")
        found = Path(str(importlib.import_module(package).__file__)).parent / rest
        yield name, json.loads(found.read_text())


def of_models(module: str) -> Iterator[tuple[str, Any]]:
    classes = inspect.getmembers(importlib.import_module(module), inspect.isclass)
    for name, found in islice(classes, date.today().toordinal() % SHARE, None, SHARE):
        try:
            yield f"{module}.{name}", TypeAdapter(found).json_schema()
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError):
            continue  # a class that is not a model


def of_the_crd() -> Iterator[tuple[str, Any]]:
    [version] = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    yield "InferenceService", schema
    for name, part in schema["properties"]["spec"]["properties"].items():
        yield f"InferenceService.spec.{name}", part


def check(schemas: Iterator[tuple[str, Any]]) -> Counter[str]:
    """Count the schemas that are enforced and refused, and the random outputs, which must validate."""
    counts: Counter[str] = Counter()
    for seed, (name, schema) in enumerate(schemas):
        try:
            guided = Guided.of("json", schema)
        except (InvalidRequest, BadGrammar) as error:
            counts["refused"] += 1
            reason = str(error)
            print(f"{name}: {reason[:150]}")
            counts["refused without a keyword"] += not any(keyword in reason for keyword in KEYWORDS)
            continue
        counts["enforced"] += 1
        text = guided.draw(seed, MAX_BYTES)
        if text is None:
            counts["longer"] += 1
            continue
        counts["drawn"] += 1
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    print(dict(counts))
    assert counts["refused without a keyword"] == 0
    return counts


def test_outputs_for_schemas_of_files_validate() -> None:
    assert check(of_files()).total() >= len(FILES)


def test_outputs_for_the_schema_of_the_crd_validate() -> None:
    assert check(of_the_crd())["drawn"] >= 2


@pytest.mark.parametrize("module", MODULES)
def test_outputs_for_models_of_client_libraries_validate(module: str) -> None:
    counts = check(of_models(module))
    assert counts["enforced"] > 40 / SHARE
    assert counts["refused"] <= counts["enforced"] / 20
    assert counts["drawn"] > counts["enforced"] / 2
