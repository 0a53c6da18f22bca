"""Builds and runs Temporal workers: one for each app, on the app's own task queue."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol, TypedDict, cast

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from perdure.activities.callbacks import CallbackActivity
from perdure.activities.claims import ClaimDesk
from perdure.activities.journal_cache import JournalActivity, JournalCache
from perdure.activities.lost_workers import LostWorkers
from perdure.activities.model import ModelActivity
from perdure.activities.notices import NoticeActivities
from perdure.activities.plan import PlanActivities, SearchAttributes
from perdure.activities.tools import ToolActivity
from perdure.agents.adk_app import AnyApp
from perdure.agents.broken import BrokenApp
from perdure.agents.definitions import App
from perdure.artifacts.sealing import SealedArtifacts
from perdure.compiler.registry import AnyRegistry, Registry, register
from perdure.compiler.sources import digest_of
from perdure.config import WorkerConfig
from perdure.credentials.sealing import cipher_of, encrypted_store
from perdure.credentials.store import CredentialStore
from perdure.logs import redact_logs
from perdure.messages.build_ids import BuildId
from perdure.messages.rollout import Rollout
from perdure.plan.nodes import ToolOptions
from perdure.redaction import RedactingCodec, safely
from perdure.steps.base import Steps
from perdure.steps.native import NativeSteps
from perdure.steps.tool_results import ToolResults
from perdure.steps.user_code import CodeRunner
from perdure.streams.hub import TokenHub
from perdure.telemetry.step_meter import StepMeter
from perdure.temporal.any_worker import Detours
from perdure.temporal.payloads import adapt
from perdure.temporal.query_guard import GuardedRunner
from perdure.temporal.sparse_heartbeats import SparseHeartbeats
from perdure.workflows.claims import ClaimsWorkflow
from perdure.workflows.notice_workflow import NoticeWorkflow
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.shared_state import SharedStateWorkflow

_HEARTBEAT_SECONDS = 1


def create_workers(
    client: Client, apps: Sequence[AnyApp], config: WorkerConfig | None = None, *, streams: TokenHub | None = None
) -> list[Worker]:
    """Return a worker for each app, ready to run.

    Args:
        client: Any client of the Temporal server; Perdure's payload format is added to it, a payload codec is kept.
        apps: What to serve. Each is compiled and checked.
        config: Limits and timeouts.
        streams: Who is told what models write, while they write it. Default: nobody.

    Raises:
        DefinitionError: An app is defined wrongly.
    """
    config = config or WorkerConfig()
    client = adapt(client, config.redact)
    if config.redact is not None:
        redact_logs(safely(config.redact))
    if isinstance(client.data_converter.payload_codec, RedactingCodec):
        # A piece of a text does not tell what the whole is.
        streams = None
    shared = SharedByWorkers(
        client, config, JournalCache(client, config.journal_cache_bytes), SearchAttributes(client), streams
    )
    # Where histories are encrypted, what is too large for them is, too; and it is opened where it is loaded.
    codec = client.data_converter.payload_codec
    kept = None if config.artifacts is None else SealedArtifacts(config.artifacts, codec)
    secrets = encrypted_store(client, config.credentials)
    tools, models = _code_runners(config.tool_threads)
    results = ToolResults(tools, kept)
    code = _Code(tools, models, results, kept, secrets, encrypted=cipher_of(client) is not None)
    registries = [register(_with_steps(app, config.steps_per_activity)) for app in apps]
    return [worker_with_steps(shared, registry, code.steps(registry), results) for registry in registries]


def _with_steps(app: AnyApp, steps: int | None) -> AnyApp:
    """Return an app of whose agents an activity takes so many steps, if a number is given."""
    if steps is None or isinstance(app, BrokenApp):
        return app
    if isinstance(app, App):
        return app.model_copy(update={"steps_per_activity": steps})
    return replace(app, steps_per_activity=steps)


@dataclass(frozen=True)
class _Code:
    """What runs the code of a process's apps."""

    tools: CodeRunner
    models: CodeRunner
    results: ToolResults
    artifacts: SealedArtifacts | None
    credentials: CredentialStore | None
    encrypted: bool
    """Histories are."""

    def steps(self, registry: AnyRegistry) -> Steps:
        """Return the steps of an app's agents."""
        if isinstance(registry, Registry):
            return NativeSteps(registry, self.tools, self.models, self.results, self.artifacts)
        return cast(_BringsSteps, registry).steps(
            self.tools, self.artifacts, self.credentials, encrypted=self.encrypted
        )


class _BringsSteps(Protocol):
    """The code of an app whose agents are not Perdure's own."""

    def steps(
        self,
        code: CodeRunner,
        artifacts: SealedArtifacts | None,
        credentials: CredentialStore | None,
        *,
        encrypted: bool,
    ) -> Steps:
        """Return the steps of its agents."""
        ...


async def run_workers(
    client: Client,
    apps: Sequence[AnyApp],
    config: WorkerConfig | None = None,
    *,
    stop: asyncio.Event | None = None,
    started: asyncio.Event | None = None,
    streams: TokenHub | None = None,
) -> None:
    """Serve apps until `stop` is set or the task is cancelled; then what runs gets its grace period.

    Args:
        client: Any client of the Temporal server, as for `create_workers`.
        apps: What to serve.
        config: Limits and timeouts.
        stop: Set by the caller when the workers are to end. Default: they end when the task is cancelled.
        started: Set when all workers ask for work.
        streams: Who is told what models write, while they write it. Default: nobody.

    Raises:
        DefinitionError: An app is defined wrongly.
    """
    workers = create_workers(client, apps, config, streams=streams)
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        if started is not None:
            started.set()
        await (stop or asyncio.Event()).wait()
        # All at once: one after the other each would have its grace period, and the last go on taking work.
        await asyncio.gather(*(worker.shutdown() for worker in workers))


@dataclass(frozen=True)
class SharedByWorkers:
    """What the workers of one process have in common."""

    client: Client
    config: WorkerConfig
    journals: JournalCache
    attributes: SearchAttributes
    streams: TokenHub | None


def worker_with_steps(shared: SharedByWorkers, registry: AnyRegistry, steps: Steps, results: ToolResults) -> Worker:
    """Build the worker of one app, whose agents' steps are done by `steps`."""
    client, config, journals = shared.client, shared.config, shared.journals
    rollout = Rollout(attempts=config.missing_code_attempts, pause=config.missing_code_pause)
    plan = PlanActivities(registry, client, shared.attributes, notices=config.notices is not None)
    notices = NoticeActivities(registry.plan.app, client, config.notices)
    kept = JournalActivity(journals)
    tools = ToolActivity(steps, journals, ClaimDesk(client, journals), rollout, results)
    return Worker(
        client,
        task_queue=registry.plan.app,
        workflows=[SessionWorkflow, SharedStateWorkflow, ClaimsWorkflow, NoticeWorkflow],
        activities=[
            plan.load_plan,
            plan.share_state,
            kept.keep_journal,
            kept.load_journal,
            ModelActivity(client, steps, journals, rollout, tools, shared.streams).call,
            CallbackActivity(steps, journals, rollout, shared.streams).call,
            tools.keep_result,
            tools.run,
            notices.notify,
            notices.send,
        ],
        workflow_runner=GuardedRunner(),
        interceptors=[StepMeter(), Detours(), LostWorkers(client), *_sparse(config)],
        identity=config.identity,
        **_version(registry, config),
        max_cached_workflows=config.max_cached_workflows,
        max_concurrent_activities=config.max_concurrent_activities,
        max_concurrent_local_activities=config.max_concurrent_activities,
        max_concurrent_workflow_tasks=config.max_concurrent_workflow_tasks,
        sticky_queue_schedule_to_start_timeout=config.sticky_timeout,
        max_heartbeat_throttle_interval=timedelta(seconds=_HEARTBEAT_SECONDS),
        default_heartbeat_throttle_interval=timedelta(seconds=_HEARTBEAT_SECONDS),
        graceful_shutdown_timeout=config.graceful_shutdown_timeout,
        debug_mode=config.debug,
        workflow_failure_exception_types=[Exception] if config.fail_workflows_on_defects else [],
    )


def _sparse(config: WorkerConfig) -> list[SparseHeartbeats]:
    return [SparseHeartbeats(ToolOptions().heartbeat_timeout)] if config.heartbeats == "sparse" else []


class _Version(TypedDict, total=False):
    build_id: str
    deployment_config: WorkerDeploymentConfig


_BEHAVIOR = {"pinned": VersioningBehavior.PINNED, "auto-upgrade": VersioningBehavior.AUTO_UPGRADE}


def _version(registry: AnyRegistry, config: WorkerConfig) -> _Version:
    if config.deployment is None:
        # Else Temporal hashes the code of every module that is loaded, which takes seconds; and it says less.
        return _Version(build_id=str(BuildId(registry.plan.app, registry.plan.digest[:12], digest_of(registry.app))))
    version = WorkerDeploymentVersion(deployment_name=config.deployment, build_id=config.build_id or "")
    return _Version(
        deployment_config=WorkerDeploymentConfig(
            version=version,
            use_worker_versioning=True,
            default_versioning_behavior=_BEHAVIOR[config.versioning or "auto-upgrade"],
        )
    )


@functools.cache
def _code_runners(threads: int) -> tuple[CodeRunner, CodeRunner]:
    """Return what runs the code of tools and that of models, for the whole process."""
    # On one loop: what tools and models share, such as a client of a service, belongs to one.
    tools = CodeRunner("tools", threads)
    # Tools that hold all of their threads hold up no instruction.
    return tools, tools.with_threads("models", threads)
