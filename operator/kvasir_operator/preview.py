"""The command `kvasir-operator plan FILE`: a dry run of the operator for the InferenceServices of a manifest.

Nothing is written. The API server fills in defaults and validates the service and each of its children with dry-run
requests, so the output includes its refusals.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvasir_contract.api import KIND
from kvasir_contract.exits import ExitCode
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, NotFoundError
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.observed import Object
from kvasir_operator.observe.service_memory import Key, ServiceMemory
from kvasir_operator.observe.service_observer import ServiceObserver
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.operator_settings import OperatorSettings, parse_preview
from kvasir_operator.plan.applies import Apply
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.plan.text import render
from kvasir_operator.spec import parse_service
from kvasir_operator.spec_values import InvalidSpec


class PreviewError(Exception):
    """The manifest cannot be used."""


def preview(arguments: Sequence[str]) -> int:
    """Print the plans. Return the exit code, which is 2 if the manifest or an object is invalid."""
    file, settings = parse_preview(arguments)
    try:
        services = read_manifest(file)
        return asyncio.run(_preview(services, settings))
    except (PreviewError, ClusterError) as error:
        print(f"kvasir-operator plan: {error}", file=sys.stderr)
        return ExitCode.USER_ERROR


def read_manifest(file: Path) -> list[Object]:
    """Return the InferenceServices of a manifest. Raises PreviewError."""
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except OSError as error:
        raise PreviewError(f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise PreviewError(f"{file} is not valid YAML: {error}") from error
    services = [entry for entry in documents if isinstance(entry, dict) and entry.get("kind") == KIND]
    if not services:
        raise PreviewError(f"{file} contains no {KIND}")
    for service in services:
        metadata = service.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise PreviewError(f"{file}: an {KIND} has no metadata.name")
        metadata.setdefault("namespace", "default")
    return services


async def _preview(services: Sequence[Object], settings: OperatorSettings) -> int:
    cluster, reports = await Cluster.connect(), StatusReports()
    code = ExitCode.OK
    try:
        for service in services:
            metadata = service["metadata"]
            print(f"# {metadata['namespace']}/{metadata['name']}")
            try:
                text, refused = await _plan(cluster, reports, service, settings)
                print(text + "".join(refused))
                code = ExitCode.USER_ERROR if refused else code
            except (ClusterError, InvalidSpec) as error:
                print(f"refused: {error}\n")
                code = ExitCode.USER_ERROR
    finally:
        await reports.close()
        await cluster.close()
    return code


async def _plan(
    cluster: Cluster, reports: StatusReports, manifest: Object, settings: OperatorSettings
) -> tuple[str, list[str]]:
    """Return the plan as text, and a line for each child that the API server refuses."""
    resource = await _stored(cluster, manifest)
    if resource["spec"].get("operatorClass", "") != settings.operator_class:
        return "not handled: its spec.operatorClass belongs to another operator\n", []
    service = parse_service(resource)
    previous: Mapping[str, Any] = resource.get("status") or {}
    cordons: Cordons[Key] = Cordons(lambda _: None)
    observer = ServiceObserver(cluster, reports, cordons)
    observed = await observer.observe(resource, service, ServiceMemory(service.uid))
    plan = make_plan(service, observed, previous, settings.release, observer.now())
    if plan.new_link_keys:  # the plan after the Secret is created
        observed = observed.with_changes(link_secret=f"{service.name}-link-new", link_secret_exists=True)
        after = make_plan(service, observed, previous, settings.release, observer.now())
        plan = Plan(**{**vars(after), "new_link_keys": True})
    changed, refused = [], []
    for apply in plan.applies:
        try:
            if await _changes(cluster, apply):
                changed.append(apply)
        except ClusterError as error:
            refused.append(f"refused {apply.key[0].kind}/{apply.key[1]}: {error}\n")
    return render(Plan(**{**vars(plan), "applies": tuple(changed)})), refused


async def _stored(cluster: Cluster, manifest: Object) -> Object:
    """Return the service as the API server would store it, with defaults and without fields removed from the
    manifest."""
    metadata = manifest["metadata"]
    try:
        found = await cluster.get(INFERENCE_SERVICE, metadata["namespace"], metadata["name"])
    except NotFoundError:
        return await cluster.create(INFERENCE_SERVICE, metadata["namespace"], manifest, dry_run=True)
    return await cluster.replace(INFERENCE_SERVICE, {**found, "spec": manifest.get("spec", {})}, dry_run=True)


async def _changes(cluster: Cluster, apply: Apply) -> bool:
    """Return whether the apply would change the stored object."""
    applied = await cluster.apply(apply.key[0], apply.body, force=True, dry_run=True)
    if apply.existing is None:
        return True
    return _content(applied) != _content(apply.existing.object)


def _content(resource: Object) -> Object:
    metadata = {
        name: value
        for name, value in resource["metadata"].items()
        if name not in ("managedFields", "resourceVersion", "generation")
    }
    return {**resource, "metadata": metadata, "status": None}
