"""Leadership of operator processes: one replica works, and another takes over."""

import contextlib

import aiohttp

from e2e.operator.harness.operator_process import OperatorProcess
from e2e.operator.harness.world import World
from kvasir_operator.cluster.kinds import LEASE
from kvasir_operator.cluster.lease import LEASE_NAME


async def test_one_of_two_operators_leads_and_the_other_takes_over(world: World) -> None:
    async with (
        world.operator("--identity", "a", "--lease-duration", "3s") as first,
        world.operator("--identity", "b", "--lease-duration", "3s") as second,
    ):
        leader, other = await who_leads(world, first, second)
        await leader.stop()
        await other.logs("leading", patience=3)  # the Lease is released, so there is no wait for its end
        await world.create()
        await world.eventually(world.all_children)


async def test_a_leader_that_is_killed_is_followed_within_seconds(world: World) -> None:
    async with (
        world.operator("--identity", "a", "--lease-duration", "3s") as first,
        world.operator("--identity", "b", "--lease-duration", "3s") as second,
    ):
        leader, other = await who_leads(world, first, second)
        await leader.kill()
        await other.logs("leading", patience=6)


async def test_a_leader_whose_lease_was_taken_ends(world: World) -> None:
    async with world.operator("--lease-duration", "3s") as operator:
        await operator.logs("leading")

        async def taken() -> bool:
            lease = await world.must_get(LEASE, LEASE_NAME)
            lease["spec"]["holderIdentity"] = "another"
            with contextlib.suppress(Exception):
                await world.request("PUT", LEASE.path(world.namespace, LEASE_NAME), lease)
                return True
            return False

        await world.eventually(taken)
        assert await operator.ended() == 1
        assert "another holds it now" in "\n".join(operator.log)


async def test_a_leader_and_a_standby_are_live_and_ready(world: World) -> None:
    async with (
        world.operator("--identity", "a") as first,
        world.operator("--identity", "b") as second,
        aiohttp.ClientSession() as http,
    ):
        leader, other = await who_leads(world, first, second)
        for operator, leading in ((leader, "1.0"), (other, "0.0")):
            address = (await operator.logs("probes and metrics on")).rpartition(" ")[2]
            for page in ("/healthz", "/readyz"):
                async with http.get(address + page) as answer:
                    assert (answer.status, await answer.text()) == (200, "ok\n")
            async with http.get(address + "/metrics") as answer:
                assert f"kvasir_operator_leading {leading}" in await answer.text()


async def who_leads(world: World, *operators: OperatorProcess) -> list[OperatorProcess]:
    """Return the operators, the leader first."""

    async def leader() -> list[OperatorProcess]:
        return [operator for operator in operators if any("leading" in line for line in operator.log)]

    (first,) = await world.eventually(leader)
    (other,) = [operator for operator in operators if operator is not first]
    await other.logs("standing by")
    return [first, other]
