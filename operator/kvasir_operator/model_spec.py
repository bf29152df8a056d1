"""The field `model` of an InferenceService."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir_operator.pod_spec import Json
from kvasir_operator.spec_values import InvalidSpec, parse_quantity, parsed, secret_name


@dataclass(frozen=True)
class SecretKey:
    name: str
    key: str


@dataclass(frozen=True)
class AdapterSpec:
    name: str
    source: str  # hf://org/name[@revision] or file:///path


@dataclass(frozen=True)
class CacheSpec:
    """A PersistentVolumeClaim for the model."""

    size: str  # a quantity
    access_modes: tuple[str, ...]
    storage_class_name: str | None  # None: the cluster's default
    retain: bool  # when the service is deleted
    credentials: str | None = None  # a Secret with variables of the download


@dataclass(frozen=True)
class ModelSpec:
    source: str  # hf://org/name[@revision], file:///path, pvc://claim/path, s3://bucket/prefix or demo://
    served_names: tuple[str, ...]  # never empty
    token_secret: SecretKey | None
    task: str = "auto"
    quantization: str = "auto"
    lora_adapters: tuple[AdapterSpec, ...] | None = None  # None: engines accept none
    cache: CacheSpec | None = None

    @property
    def takes_adapters(self) -> bool:
        return self.lora_adapters is not None

    @property
    def claim(self) -> str:
        # of a pvc:// source, else ""
        scheme, _, rest = self.source.partition("://")
        return rest.partition("/")[0] if scheme == "pvc" else ""

    @property
    def is_on_volume(self) -> bool:
        # frontends and engines download nothing but adapters
        return bool(self.claim) or self.cache is not None


def parse_model(model: Json, name: str) -> ModelSpec:
    """Parse the field of the service `name`. Raises InvalidSpec."""
    token, served_names = model.get("tokenSecret"), tuple(model.get("servedNames", ())) or (name,)
    return ModelSpec(
        source=model["source"],
        served_names=served_names,
        token_secret=SecretKey(token["name"], token["key"]) if token else None,
        task=model["task"],
        quantization=model["quantization"],
        lora_adapters=_adapters(model["loraAdapters"], served_names) if "loraAdapters" in model else None,
        cache=_cache(model["cache"]) if "cache" in model else None,
    )


def _cache(cache: Json) -> CacheSpec:
    return CacheSpec(
        size=parsed(parse_quantity, cache, "size", "model.cache"),
        access_modes=tuple(cache["accessModes"]),
        storage_class_name=cache.get("storageClassName"),
        retain=cache["retain"],
        credentials=secret_name(cache, "credentials"),
    )


def _adapters(adapters: Sequence[Json], served_names: tuple[str, ...]) -> tuple[AdapterSpec, ...]:
    for adapter in adapters:
        if adapter["name"] in served_names:  # the schema does not see the default of servedNames
            raise InvalidSpec(f"spec.model.loraAdapters: {adapter['name']} is a name of the model too: rename it")
    return tuple(AdapterSpec(adapter["name"], adapter["source"]) for adapter in adapters)
