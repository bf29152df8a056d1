"""The properties of the installation that its objects depend on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvasir_contract.api import GROUP
from kvasir_operator.profiles import Profiles
from kvasir_operator.spec import InferenceService, parse_service
from kvasir_operator.spec_values import InvalidSpec

IMAGE_GROUP: Final = 65532  # of the images' user
OWN_PREFIXES: Final = ("app.kubernetes.io/", f"{GROUP}/")


@dataclass(frozen=True)
class Release:
    frontend_image: str  # of services without their own
    engine_image: str
    version: str
    operator_namespace: str = ""  # allowed by NetworkPolicies; "" for none
    reads_nodes: bool = True  # evictions can wait for the operator
    fs_group: int | None = IMAGE_GROUP  # None on OpenShift, which chooses one
    monitoring_namespaces: tuple[str, ...] = ()  # may read metrics of all services
    image_pull_secrets: tuple[str, ...] = ()  # of all services, in addition to their own
    # keys of metadata that the objects of a service get from it, or prefixes of keys that end with "/"
    inherited_labels: tuple[str, ...] = ()
    inherited_annotations: tuple[str, ...] = ()
    profiles: Profiles = field(default_factory=Profiles, compare=False)
    profile: str = ""  # digest of the one that a service uses

    @property
    def id(self) -> str:
        # differs if pod templates may: 0.1.0-1a2b3c4d
        profile = [self.profile] if self.profile else []
        images = json.dumps([self.frontend_image, self.engine_image, *self.image_pull_secrets, *profile])
        return f"{self.version}-{hashlib.sha256(images.encode()).hexdigest()[:8]}"

    def parse(self, resource: Mapping[str, Any]) -> InferenceService:
        """Parse an InferenceService, with what its objects inherit. Raises InvalidSpec."""
        metadata = resource["metadata"]
        written = self._inheriting(parse_service(resource), metadata)
        profile = self.profiles.find(written.profile)
        if profile is None:
            return written
        try:
            service = parse_service({**resource, "spec": profile.applied_to(resource["spec"])})
        except InvalidSpec as error:
            raise InvalidSpec(f"with the profile {profile.name}: {error}") from error
        return replace(self._inheriting(service, metadata), applied=profile, written=written)

    def _inheriting(self, service: InferenceService, metadata: Mapping[str, Any]) -> InferenceService:
        return replace(
            service,
            default_pull_secrets=self.image_pull_secrets,
            labels=_selected(metadata.get("labels") or {}, self.inherited_labels),
            annotations=_selected(metadata.get("annotations") or {}, self.inherited_annotations),
        )

    def of(self, service: InferenceService) -> "Release":
        """Return the release of a service's pods: a change of its profile is a new release too."""
        return self if service.applied is None else replace(self, profile=service.applied.digest)


def _selected(given: Mapping[str, str], keys: Sequence[str]) -> Mapping[str, str]:
    def is_inherited(name: str) -> bool:
        listed = any(name == key or (key.endswith("/") and name.startswith(key)) for key in keys)
        return listed and not name.startswith(OWN_PREFIXES)

    return {name: value for name, value in given.items() if is_inherited(name)}
