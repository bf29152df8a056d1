"""The command `kvasir-operator plan FILE`: a dry run of the operator for the InferenceServices of a manifest.

The API server fills in defaults and validates with dry-run requests. Without a cluster, only the schema's defaults
are filled in, and the service is planned as a new one.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kvasir_contract.api import CRD_NAME, KIND, MANAGER
from kvasir_contract.exits import ExitCode
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, NotFoundError
from kvasir_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, INFERENCE_SERVICE
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.observed import Object, Observed
from kvasir_operator.observe.service_memory import Key, ServiceMemory
from kvasir_operator.observe.service_observer import ServiceObserver
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.operator_settings import OperatorSettings, parse_preview, release_of
from kvasir_operator.plan.applies import Apply, digest
from kvasir_operator.plan.plan import make_plan
from kvasir_operator.plan.text import render
from kvasir_operator.profiles import PROFILES_CONFIG_MAP, Profiles
from kvasir_operator.reconciler import release_in
from kvasir_operator.resources.release import Release
from kvasir_operator.spec_values import InvalidSpec


class PreviewError(Exception):
    """The manifest cannot be used."""


def preview(arguments: Sequence[str]) -> int:
    """Print the plans. Return the exit code, which is 2 if the manifest or an object is invalid."""
    file, offline, settings = parse_preview(arguments)
    try:
        services = read_manifest(file)
        if offline or _is_alone():
            return _preview_offline(services, settings)
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


def _is_alone() -> bool:
    # Nothing names a cluster. A kubeconfig that cannot be used is an error instead.
    named = any(os.environ.get(name) for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"))
    return not named and not (Path.home() / ".kube" / "config").exists()


def _preview_offline(services: Sequence[Object], settings: OperatorSettings) -> int:
    release = _completed(settings.release, {})
    print(
        f"# no cluster was asked, so nothing is validated; images: {release.frontend_image}, {release.engine_image}"
    )
    code = ExitCode.OK
    for manifest in services:
        print(f"# {manifest['metadata']['namespace']}/{manifest['metadata']['name']}")
        try:
            service = release.parse(with_defaults(manifest))
        except InvalidSpec as error:
            print(f"refused: {error}\n")
            code = ExitCode.USER_ERROR
            continue
        observed = Observed(1, "", link_secret=f"{service.name}-link-new", link_secret_exists=True)
        plan = make_plan(service, observed, {}, release, datetime.now(UTC))
        print(render(replace(plan, new_link_keys=True)))
    return code


def with_defaults(manifest: Object) -> Object:
    (version,) = yaml.safe_load(_crd().read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    filled: Object = _filled(manifest, schema)
    return {**filled, "metadata": {"generation": 1, "uid": "", **filled["metadata"]}}


def _filled(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_filled(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    missing = {name: field["default"] for name, field in fields.items() if "default" in field and name not in value}
    return {name: _filled(item, fields.get(name, {})) for name, item in {**value, **missing}.items()}


def _crd() -> Path:
    # package data of an installed operator; in a checkout, the file itself
    package = Path(__file__).parent
    installed = package / "crds" / f"{CRD_NAME}.yaml"
    return installed if installed.exists() else package.parents[1] / "crds" / f"{CRD_NAME}.yaml"


async def _release(cluster: Cluster, settings: OperatorSettings) -> Release:
    release = await release_in(cluster, settings.release)
    if not release.profiles.texts():
        release = replace(release, profiles=await _profiles(cluster, release.operator_namespace))
    if release.frontend_image and release.engine_image:
        return release
    try:
        operator = await cluster.get(DEPLOYMENT, release.operator_namespace, MANAGER)
    except ClusterError:
        found = {}
    else:
        containers = operator["spec"]["template"]["spec"]["containers"]
        found = {entry["name"]: entry.get("value", "") for each in containers for entry in each.get("env") or ()}
    completed = _completed(release, found)
    print(f"# images: {completed.frontend_image}, {completed.engine_image}")
    return completed


async def _profiles(cluster: Cluster, namespace: str) -> Profiles:
    try:
        found = await cluster.get(CONFIG_MAP, namespace, PROFILES_CONFIG_MAP)
    except NotFoundError:
        return Profiles()
    except ClusterError as error:
        print(f"# the operator's profiles cannot be read, so this plan is without them: {error}")
        return Profiles()
    return Profiles.of_config_map(found.get("data") or {})


def _completed(release: Release, found: Mapping[str, str]) -> Release:
    # options of the preview take precedence
    own = release_of(found)
    return replace(
        release,
        image_pull_secrets=release.image_pull_secrets or own.image_pull_secrets,
        inherited_labels=release.inherited_labels or own.inherited_labels,
        inherited_annotations=release.inherited_annotations or own.inherited_annotations,
        monitoring_namespaces=release.monitoring_namespaces or own.monitoring_namespaces,
        frontend_image=release.frontend_image or own.frontend_image or "kvasir-frontend:dev",
        engine_image=release.engine_image or own.engine_image or "kvasir-engine:dev",
    )


async def _preview(services: Sequence[Object], settings: OperatorSettings) -> int:
    cluster, reports = await Cluster.connect(), StatusReports()
    code = ExitCode.OK
    try:
        try:
            settings = replace(settings, release=await _release(cluster, settings))
        except ClusterError as error:
            print(f"kvasir-operator plan: {error}", file=sys.stderr)
            return ExitCode.USER_ERROR
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
    service = settings.release.parse(resource)
    previous: Mapping[str, Any] = resource.get("status") or {}
    cordons: Cordons[Key] = Cordons(lambda _: None)
    observer = ServiceObserver(cluster, reports, cordons)
    observed = await observer.observe(resource, service, ServiceMemory(service.uid))
    plan = make_plan(service, observed, previous, settings.release, observer.now())
    if plan.new_link_keys:  # the plan after the Secret is created
        observed = observed.with_changes(link_secret=f"{service.name}-link-new", link_secret_exists=True)
        after = make_plan(service, observed, previous, settings.release, observer.now())
        plan = replace(after, new_link_keys=True)
    changed, refused, unchanged = [], [], {}
    for apply in plan.applies:
        try:
            if await _changes(cluster, apply):
                changed.append(apply)
            elif apply.existing is not None:
                unchanged[apply.existing.uid] = digest(apply.body, apply.existing.object)
        except ClusterError as error:
            refused.append(f"refused {apply.key[0].kind}/{apply.key[1]}: {error}\n")
    # The status counts every apply as under way, so plan again without those that change nothing.
    after = make_plan(
        service, observed.with_changes(unchanged=unchanged), previous, settings.release, observer.now()
    )
    return render(replace(after, new_link_keys=plan.new_link_keys, applies=tuple(changed))), refused


async def _stored(cluster: Cluster, manifest: Object) -> Object:
    # with defaults, and without fields that left the manifest
    metadata = manifest["metadata"]
    try:
        found = await cluster.get(INFERENCE_SERVICE, metadata["namespace"], metadata["name"])
    except NotFoundError:
        return await cluster.create(INFERENCE_SERVICE, metadata["namespace"], manifest, dry_run=True)
    merged = {
        field: {**(found["metadata"].get(field) or {}), **(metadata.get(field) or {})}
        for field in ("labels", "annotations")
    }
    changed = {**found, "metadata": {**found["metadata"], **merged}, "spec": manifest.get("spec", {})}
    return await cluster.replace(INFERENCE_SERVICE, changed, dry_run=True)


async def _changes(cluster: Cluster, apply: Apply) -> bool:
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
