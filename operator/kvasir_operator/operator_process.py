"""The operator's process: acquires the Lease, then watches and reconciles until it stops or loses the Lease."""

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import kopf
from prometheus_client import CollectorRegistry

from kvasir_contract.api import KIND
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import Failure, report_failure
from kvasir_contract.logs import setup_logging
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, NotFoundError
from kvasir_operator.cluster.events import Events
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, OPTIONAL, Kind
from kvasir_operator.cluster.lease import LEASE_NAME, Lease, LeaseLostError
from kvasir_operator.cluster.workqueue import WorkQueue
from kvasir_operator.demand_polls import DemandPolls
from kvasir_operator.load_polls import LoadPolls
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.observe.watch import WATCHED, kopf_settings, registry
from kvasir_operator.operator_metrics import OperatorMetrics
from kvasir_operator.operator_settings import OperatorSettings, parse_settings
from kvasir_operator.probe_server import ProbeServer
from kvasir_operator.profiles import Profiles
from kvasir_operator.reconciler import Reconciler, release_in
from kvasir_operator.upgrades import Upgrades

log = logging.getLogger(__name__)

SECRETS_SECONDS: Final = 45.0  # in which each service's Secrets are checked once, evenly spread
PROFILES_SECONDS: Final = 15.0  # between two looks at the files
_RETRY: Final = 5.0  # of a failed resync
_STUCK: Final = 3.0  # resync periods without a resync, after which the process is not live


def main(arguments: Sequence[str]) -> int:
    settings = parse_settings(arguments)
    setup_logging("operator", settings.log_level, settings.log_format)
    try:
        asyncio.run(Operator(settings).run())
    except OperatorError as error:
        log.error("%s", error)
        reason = Reason.INVALID_SPEC if error.code == ExitCode.USER_ERROR else Reason.CRASH_LOOPING
        report_failure(Failure(reason, str(error)))
        return error.code
    except Exception as error:
        log.exception("the operator failed")
        report_failure(Failure(Reason.CRASH_LOOPING, f"{type(error).__name__}: {error}"))
        return ExitCode.FAILED
    return ExitCode.OK


class OperatorError(Exception):
    """Ends the process with an exit code and a message for the user."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Operator:
    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._metrics = OperatorMetrics(CollectorRegistry())
        self._checked = False
        self._missing: set[Kind] = set()
        self._leading = False
        self._resynced_at = time.monotonic()

    async def run(self) -> None:
        """Run until stopped. Raises OperatorError."""
        self._listen_for_signals()
        server = ProbeServer(self._metrics.registry, trouble=self._trouble, unready=self._unready)
        async with contextlib.AsyncExitStack() as stack:
            try:
                stack.push_async_callback(server.close)
                await server.start(self._settings.host, self._settings.port)
                cluster = await Cluster.connect()
                stack.push_async_callback(cluster.close)
                await self._check(cluster)
            except ClusterError as error:
                raise OperatorError(ExitCode.USER_ERROR, str(error)) from error
            except OSError as error:
                address = f"{self._settings.host}:{self._settings.port}"
                raise OperatorError(
                    ExitCode.USER_ERROR,
                    f"cannot serve probes and metrics on {address}: {error.strerror}; choose another --port",
                ) from error
            await self._serve(cluster)

    async def _check(self, cluster: Cluster) -> None:
        for namespace in self._namespaces():
            try:
                await cluster.probe(INFERENCE_SERVICE, namespace)
            except NotFoundError as error:
                raise ClusterError(
                    f"the cluster has no CustomResourceDefinition of {KIND}: install it "
                    "(kubectl apply -f crds/), then start the operator again"
                ) from error
            for kind in WATCHED:
                try:
                    await cluster.probe(kind, namespace)
                except NotFoundError:
                    if kind not in OPTIONAL:
                        raise
                    self._missing.add(kind)
        if self._missing:
            names = ", ".join(f"{kind.kind} ({kind.api_version})" for kind in self._missing)
            log.info("the cluster has no %s, so changes of such objects are not watched", names)
        self._checked = True

    async def _serve(self, cluster: Cluster) -> None:
        settings = self._settings
        lease = Lease(
            cluster,
            namespace=settings.lease_namespace,
            identity=settings.identity,
            name=f"{LEASE_NAME}-{settings.operator_class}" if settings.operator_class else LEASE_NAME,
            duration=settings.lease_duration,
        )
        try:
            if await self._unless_stopped(lease.acquire()):
                self._leading = True
                self._metrics.leading.set(1)
                await self._unless_stopped(self._lead(cluster, lease))
        except LeaseLostError as error:
            message = f"{error}: exiting so that two replicas never reconcile at the same time"
            raise OperatorError(ExitCode.FAILED, message) from error
        except ClusterError as error:
            raise OperatorError(ExitCode.FAILED, str(error)) from error
        finally:
            self._leading = False
            await lease.release()
        log.info("stopped")

    async def _lead(self, cluster: Cluster, lease: Lease) -> None:
        # Raises LeaseLostError or the error that ended a part.
        settings, reports = self._settings, StatusReports()
        release = await release_in(cluster, settings.release)
        cordons: Cordons[Key] = Cordons(lambda key: queue.add(key), settings.drain_taints)
        polls = DemandPolls(reports, lambda key: queue.add(key))
        load_polls = LoadPolls(reports, lambda key: queue.add(key))
        reconciler = Reconciler(
            cluster,
            release,
            Events(cluster),
            reports,
            operator_class=settings.operator_class,
            upgrades=Upgrades(settings.max_upgrades),
            cordons=cordons,
            polls=polls,
            load_polls=load_polls,
            metrics=self._metrics.of_services,
        )
        queue = WorkQueue(self._metrics.measured(reconciler.reconcile), workers=settings.workers)
        self._metrics.watch_queue(lambda: queue.depth, lambda: queue.failing)
        self._resynced_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(lease.hold())
                group.create_task(queue.run())
                group.create_task(self._resync(cluster, queue, reconciler))
                group.create_task(self._watch(cluster, queue, cordons))
                group.create_task(check_secrets(reconciler, queue.add))
                group.create_task(check_profiles(release.profiles, reconciler, queue.add))
        except* (LeaseLostError, ClusterError) as errors:
            raise _first(errors) from None
        finally:
            await polls.close()
            await load_polls.close()
            await reports.close()

    async def _watch(self, cluster: Cluster, queue: WorkQueue[Key], cordons: Cordons[Key]) -> None:
        # kopf replaces our signal handlers when it starts
        namespaces = self._settings.namespaces
        nodes = cordons if self._settings.release.reads_nodes else None
        started = asyncio.Event()
        waiting = asyncio.create_task(started.wait())
        waiting.add_done_callback(lambda _: self._listen_for_signals())
        try:
            await kopf.operator(
                registry=registry(cluster, queue.add, nodes, self._missing),
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                ready_flag=started,
            )
        finally:
            waiting.cancel()
        self._stop.set()  # kopf returns without an error only after a signal

    async def _resync(self, cluster: Cluster, queue: WorkQueue[Key], reconciler: Reconciler) -> None:
        # A fallback for the watches. Random delays spread the load.
        spread = 0.0
        while True:
            try:
                keys: set[Key] = set()
                for namespace in self._namespaces():
                    for service in await cluster.list(INFERENCE_SERVICE, namespace):
                        metadata = service["metadata"]
                        key = Key(metadata["namespace"], metadata["name"])
                        queue.add_after(key, random.uniform(0.0, spread))
                        keys.add(key)
            except ClusterError as error:
                log.warning("cannot list the InferenceServices: %s; retrying in %.0f s", error, _RETRY)
                await asyncio.sleep(_RETRY)
                continue
            self._metrics.services.set(len(keys))
            reconciler.forget_all_but(keys)
            self._resynced_at = time.monotonic()
            spread = self._settings.resync / 2
            await asyncio.sleep(self._settings.resync * random.uniform(0.9, 1.1))

    # ------------------------------------------------------------------------------------------------- details

    def _namespaces(self) -> Sequence[str | None]:
        return self._settings.namespaces or (None,)

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` until it completes or the process is stopped, which returns False."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            return not self._stop.is_set()
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _trouble(self) -> str:
        age = time.monotonic() - self._resynced_at
        if self._leading and age > _STUCK * self._settings.resync:
            return f"the last resync was {age:.0f} s ago"
        return ""

    def _unready(self) -> str:
        return "" if self._checked else "the API server has not been reached yet"


async def check_secrets(reconciler: Reconciler, put: Callable[[Key], None]) -> None:
    """Queue services whose Secrets were deleted, until cancelled. The operator may not watch Secrets."""
    while True:
        keys = reconciler.keys
        for key in keys:
            if await reconciler.lost_a_secret(key):
                put(key)
            await asyncio.sleep(SECRETS_SECONDS / len(keys))
        if not keys:
            await asyncio.sleep(SECRETS_SECONDS)


async def check_profiles(profiles: Profiles, reconciler: Reconciler, put: Callable[[Key], None]) -> None:
    """Queue all services when a profile changes, until cancelled."""
    seen = profiles.texts()
    while True:
        await asyncio.sleep(PROFILES_SECONDS)
        if (texts := profiles.texts()) != seen:
            log.info("the profiles have changed: %s", ", ".join(sorted(texts)) or "there are none")
            seen = texts
            for key in reconciler.keys:
                put(key)


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
