"""NetworkPolicies, which limit the incoming connections of pods. The kubelet's probes are always allowed."""

from collections.abc import Sequence
from typing import Final

from kvasir_contract.endpoints import HTTP_PORT, KV_HAND_OVER_PORT, LINK_PORT, MASTER_PORT, OPS_PORT
from kvasir_operator.pod_spec import Json
from kvasir_operator.resources.engine_stateful_set import hands_kv_over
from kvasir_operator.resources.names import Component, Object, metadata, selector_labels, workload_name
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"  # set by Kubernetes
# Linux's for sockets without a port of their own, as those of gloo and NCCL
_COLLECTIVE_PORTS: Final = (32768, 60999)


def network_policies(service: InferenceService, release: Release) -> list[Object]:
    ops = _rule(OPS_PORT, _readers(service, release))
    engines: list[Json] = [{"podSelector": {"matchLabels": selector_labels(service, "engine")}}]
    allow_from = service.network.allow_from
    http: list[Object] = [_open(HTTP_PORT)] if allow_from is None else _rule(HTTP_PORT, allow_from)
    return [
        _policy(service, "frontend", [*http, *_rule(LINK_PORT, engines), *ops]),
        _policy(service, "engine", [*ops, *_among_engines(service, engines)]),
    ]


def _among_engines(service: InferenceService, engines: Sequence[Json]) -> list[Object]:
    # All engines of the service may connect: a policy cannot distinguish ranks.
    if hands_kv_over(service):
        return _rule(KV_HAND_OVER_PORT, engines)
    return _collectives(engines) if service.engine.nodes > 1 else []


def _collectives(engines: Sequence[Json]) -> list[Object]:
    first, last = _COLLECTIVE_PORTS
    ports = [{"protocol": "TCP", "port": first, "endPort": last}]
    return [*_rule(MASTER_PORT, engines), {"ports": ports, "from": [dict(peer) for peer in engines]}]


def _readers(service: InferenceService, release: Release) -> list[Json]:
    # of status and metrics
    operator = [release.operator_namespace] if release.operator_namespace else []
    namespaces: list[Json] = [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: name}}}
        for name in dict.fromkeys([*operator, *release.monitoring_namespaces])
    ]
    return [*namespaces, *service.network.allow_metrics_from]


def _policy(service: InferenceService, component: Component, rules: Sequence[Object]) -> Object:
    spec: Object = {
        "podSelector": {"matchLabels": selector_labels(service, component)},
        "policyTypes": ["Ingress"],
    }
    if rules:  # without rules, no connection is allowed
        spec["ingress"] = list(rules)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(service, workload_name(service, component), component),
        "spec": spec,
    }


def _rule(port: int, peers: Sequence[Json]) -> list[Object]:
    # An empty `from` would allow everyone.
    return [{**_open(port), "from": [dict(peer) for peer in peers]}] if peers else []


def _open(port: int) -> Object:
    return {"ports": [{"protocol": "TCP", "port": port}]}
