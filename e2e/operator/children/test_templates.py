"""The common fields of a service's pods, read from the pods that the controllers created."""

from typing import Any

from e2e.operator.harness.world import World
from kvasir_operator.cluster.kinds import NETWORK_POLICY


async def test_all_pods_leave_a_lost_node_within_half_a_minute(world: World) -> None:
    await made(world)
    for component in ("engine", "frontend"):
        (pod,) = await world.pods(component)
        tolerations = {each.get("key"): each for each in pod["spec"]["tolerations"]}
        for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"):
            assert tolerations[key]["tolerationSeconds"] == 30, component
            assert tolerations[key]["effect"] == "NoExecute"


async def test_a_users_toleration_of_a_lost_node_is_kept(world: World) -> None:
    patience = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    pod = {"tolerations": [{**patience, "tolerationSeconds": 5}]}
    await made(world, engine={"pod": pod}, frontend={"pod": pod})
    for component in ("engine", "frontend"):
        (found,) = await world.pods(component)
        times = [
            each["tolerationSeconds"] for each in found["spec"]["tolerations"] if each.get("key") == patience["key"]
        ]
        assert min(times) == 5


async def test_all_probes_ask_the_ops_port(world: World) -> None:
    await made(world)
    for component in ("engine", "frontend"):
        container = await only_container(world, component)
        probes = [
            container[name] for name in ("livenessProbe", "readinessProbe", "startupProbe") if name in container
        ]
        assert len(probes) >= 2
        assert {probe["httpGet"]["port"] for probe in probes} == {"ops"}
        assert {"name": "ops", "containerPort": 8081} in [
            {field: port[field] for field in ("name", "containerPort")} for port in container["ports"]
        ]


async def test_a_container_has_the_list_of_its_managed_variables(world: World) -> None:
    """The process rejects every other KVASIR_ variable that envFrom sets."""
    await made(world, engine={"pod": {"env": [{"name": "MINE", "value": "x"}]}})
    for component in ("engine", "frontend"):
        container = await only_container(world, component)
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        ours = sorted(name for name in variables if name.startswith("KVASIR_"))
        managed = variables["KVASIR_MANAGED_VARIABLES"]
        assert managed is not None
        assert set(ours) - set(managed.split(",")) <= {"KVASIR_MANAGED_VARIABLES"}
        assert variables["KVASIR_TERMINATION_MESSAGE"] == "/dev/termination-log"
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


async def test_policies_vanish_with_their_switch(world: World) -> None:
    await made(world)
    assert len(await world.cluster.list(NETWORK_POLICY, world.namespace)) == 2
    await world.update(lambda spec: spec.update(network={"policy": False}))
    await world.reconcile()
    assert await world.cluster.list(NETWORK_POLICY, world.namespace) == []


async def test_cpu_may_be_a_fraction(world: World) -> None:
    await made(world, engine={"pod": {"resources": {"requests": {"cpu": 0.5}, "limits": {"memory": 1073741824}}}})
    container = await only_container(world, "engine")
    assert container["resources"]["requests"]["cpu"] == "500m"
    before = (await world.stateful_set())["metadata"]["resourceVersion"]
    await world.reconcile()
    assert (await world.stateful_set())["metadata"]["resourceVersion"] == before


async def test_only_the_fetch_of_a_frontend_has_the_hubs_token(world: World) -> None:
    await made(world, model={"source": "hf://org/name", "tokenSecret": {"name": "hf"}})
    (pod,) = await world.pods("frontend")
    having = [
        container["name"]
        for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
        if any(entry["name"] == "HF_TOKEN" for entry in container["env"])
    ]
    assert having == ["fetch"]
    before = (await world.deployment())["metadata"]["resourceVersion"]
    await world.reconcile()
    assert (await world.deployment())["metadata"]["resourceVersion"] == before


async def made(world: World, **spec: Any) -> None:
    await world.create(**spec)
    await world.reconcile()
    await world.settled()
    await world.eventually(lambda: world.pods("frontend"))


async def only_container(world: World, component: str) -> Any:
    (pod,) = await world.pods(component)
    (container,) = pod["spec"]["containers"]
    return container
