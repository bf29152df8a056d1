"""Named defaults of an installation, such as one for each type of GPU, that an InferenceService selects.

They are files of a directory, which is a mounted ConfigMap. Fields of the InferenceService take precedence.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from kvasir_operator.spec_values import Fields, InvalidSpec

DEFAULT_PROFILE: Final = "default"  # of services without spec.profile
PROFILES_CONFIG_MAP: Final = "kvasir-profiles"
_SUFFIX: Final = ".yaml"

_POD: Final[Mapping[str, type]] = {
    **dict.fromkeys(("resources", "nodeSelector", "affinity", "labels", "annotations"), dict),
    **dict.fromkeys(("securityContext", "podSecurityContext"), dict),
    **dict.fromkeys(("tolerations", "topologySpreadConstraints", "env", "envFrom", "resourceClaims"), list),
    **dict.fromkeys(("volumes", "volumeMounts", "initContainers", "sidecars"), list),
    **dict.fromkeys(("priorityClassName", "runtimeClassName", "schedulerName", "serviceAccountName"), str),
}
# Without fields that have a default in the schema: it hides whether a value is explicit.
_ENGINE: Final[Mapping[str, type]] = {
    **dict.fromkeys(("resourceName", "image"), str),
    **dict.fromkeys(("maxModelLen", "maxNumSeqs", "maxNumBatchedTokens", "longPrefillTokenThreshold"), int),
    "extraArgs": list,
    "pod": dict,
}
_FRONTEND: Final[Mapping[str, type]] = {"image": str, "extraArgs": list, "pod": dict}
_COMPONENTS: Final = {"engine": _ENGINE, "frontend": _FRONTEND}
_DEFAULT_RESOURCE: Final = "nvidia.com/gpu"  # this default of the schema counts as not set
_WITH_NAMES: Final = ("env", "resourceClaims", "volumes", "volumeMounts", "initContainers", "sidecars")
_NESTED: Final = {"resources": ("limits", "requests"), "securityContext": ("capabilities",)}  # mappings too
_KEYS: Final = ("mountPath", "topologyKey", "name")  # entries of lists with equal ones replace each other
_WHOLE: Final = ("affinity",)  # its lists of terms are alternatives
_NAMES: Final = {dict: "a mapping", list: "a list", str: "text", int: "a number"}


@dataclass(frozen=True)
class Profile:
    name: str
    fields: Mapping[str, Mapping[str, Any]]  # of engine and frontend

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def paths(self) -> list[str]:
        # such as engine.pod.tolerations
        return sorted(_paths(self.fields))

    def applied_to(self, spec: Fields) -> Fields:
        """Return the spec, completed by these fields."""
        merged = dict(spec)
        for component, fields in self.fields.items():
            own = dict(spec[component])
            if own.get("resourceName") == _DEFAULT_RESOURCE:
                del own["resourceName"]
            merged[component] = {**spec[component], **_merged(fields, own)}
        return merged


class Profiles:
    def __init__(self, texts: Callable[[], Mapping[str, str]] = dict) -> None:
        """`texts` returns the YAML of each profile."""
        self.texts = texts

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        return cls(lambda: dict(_files(folder)))

    @classmethod
    def of_config_map(cls, data: Mapping[str, str]) -> Self:
        return cls(lambda: {name.removesuffix(_SUFFIX): text for name, text in data.items()})

    def find(self, name: str | None) -> Profile | None:
        """Return the profile, or the default one for None, if there is one. Raises InvalidSpec."""
        texts = self.texts()
        if name is None and DEFAULT_PROFILE not in texts:
            return None
        name = name or DEFAULT_PROFILE
        if name not in texts:
            none = f"none is known (ConfigMap {PROFILES_CONFIG_MAP} in the operator's namespace, or --profiles)"
            known = f"use one of {', '.join(sorted(texts))}" if texts else none
            raise InvalidSpec(f"spec.profile: there is no profile {name}: {known}")
        try:
            return Profile(name, _checked(_json(yaml.safe_load(texts[name]))))
        except (yaml.YAMLError, ValueError) as error:
            what = " ".join(str(error).split())
            raise InvalidSpec(f"profile {name} of the operator cannot be used: {what}") from error


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    try:
        for path in sorted(folder.iterdir()):
            # a mounted ConfigMap also has hidden folders
            if path.is_file() and not path.name.startswith("."):
                yield path.name.removesuffix(_SUFFIX), path.read_text(errors="replace")
    except OSError:
        return  # the ConfigMap does not exist, or is being replaced


def _json(document: object) -> object:
    try:
        return json.loads(json.dumps(document))
    except TypeError as error:  # a date, for example
        raise ValueError(f"a value is not text, a number or a boolean ({error}): write it in quotes") from None


def _checked(document: object) -> Mapping[str, Mapping[str, Any]]:
    if document is None:
        return {}
    _check(document, dict.fromkeys(_COMPONENTS, dict), "")
    assert isinstance(document, dict)
    for component, fields in document.items():
        _check(fields, _COMPONENTS[component], f"{component}.")
        _check_pod(fields.get("pod", {}), f"{component}.pod.")
        if not all(isinstance(argument, str) for argument in fields.get("extraArgs", ())):
            raise ValueError(f"{component}.extraArgs has an entry that is not text: write it in quotes")
    if document.get("engine", {}).get("resourceName") == "":
        raise ValueError('engine.resourceName "" (CPU) is for services only')
    return document


def _check(fields: object, known: Mapping[str, type], path: str) -> None:
    if not isinstance(fields, dict):
        raise ValueError(f"{path.rstrip('.') or 'it'} is not a mapping")
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{path}{name} is not a field of a profile: use one of {', '.join(known)}")
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise ValueError(f"{path}{name} is not {_NAMES[known[name]]}")


def _check_pod(pod: object, path: str) -> None:
    _check(pod, _POD, path)
    assert isinstance(pod, dict)
    for name, value in pod.items():
        entries = (
            value
            if isinstance(value, list)
            else [value[inner] for inner in _NESTED.get(name, ()) if inner in value]
        )
        if not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"{path}{name} has an entry that is not a mapping")
        if name in _WITH_NAMES and not all(isinstance(entry.get("name"), str) for entry in entries):
            raise ValueError(f"{path}{name} has an entry without a name")


def _merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **own}
    for name in defaults.keys() & own.keys() - set(_WHOLE):
        if isinstance(own[name], Mapping):
            merged[name] = _merged(defaults[name], own[name])
        elif isinstance(own[name], list):
            merged[name] = _joined(defaults[name], own[name])
    return merged


def _joined(defaults: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    # extraArgs are joined too: of two equal options, a process takes the last
    taken = {key for key in map(_key, own) if key is not None}
    return [*(entry for entry in defaults if _key(entry) not in taken), *own]


def _key(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return None
    return next(((key, entry[key]) for key in _KEYS if key in entry), None)


def _paths(fields: Mapping[str, Any]) -> Iterator[str]:
    for component, settings in fields.items():
        for name in settings:
            inner = settings["pod"] if name == "pod" else ()
            yield from (f"{component}.pod.{field}" for field in inner)
            if name != "pod":
                yield f"{component}.{name}"
