"""Builds and runs Temporal workers: one for each app, on the app's own task queue."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import SandboxImportNotificationPolicy

from perdure.activities.code import CodeRunner
from perdure.activities.model import ModelActivity
from perdure.activities.plan import PlanActivities, SearchAttributes
from perdure.activities.session import JournalCache
from perdure.activities.tools import ToolActivity
from perdure.agents.definitions import App
from perdure.agents.registry import Registry, register
from perdure.config import WorkerConfig
from perdure.payloads import adapt
from perdure.plan import CustomNode
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.shared_state import SharedStateWorkflow

_HEARTBEAT_SECONDS = 1


def create_workers(client: Client, apps: Sequence[App], config: WorkerConfig | None = None) -> list[Worker]:
    """Return a worker for each app, ready to run.

    Args:
        client: Any client of the Temporal server; Perdure's payload format is added to it, a payload codec is kept.
        apps: What to serve. Each is compiled and checked.
        config: Limits and timeouts.

    Raises:
        DefinitionError: An app is defined wrongly.
    """
    config = config or WorkerConfig()
    client = adapt(client)
    code = _code_runner("tools", config.tool_threads)
    # A tool that blocks its loop holds up no model call.
    models = _code_runner("models", config.tool_threads)
    journals = JournalCache(client, config.journal_cache_bytes)
    attributes = SearchAttributes(client)
    return [_worker(client, register(app), config, code, models, journals, attributes) for app in apps]


async def run_workers(
    client: Client, apps: Sequence[App], config: WorkerConfig | None = None, *, stop: asyncio.Event | None = None
) -> None:
    """Serve apps until `stop` is set or the task is cancelled; then what runs gets its grace period.

    Raises:
        DefinitionError: An app is defined wrongly.
    """
    workers = create_workers(client, apps, config)
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        await (stop or asyncio.Event()).wait()


def _worker(
    client: Client,
    registry: Registry,
    config: WorkerConfig,
    code: CodeRunner,
    models: CodeRunner,
    journals: JournalCache,
    attributes: SearchAttributes,
) -> Worker:
    plan = PlanActivities(registry, client, attributes)
    return Worker(
        client,
        task_queue=registry.plan.app,
        workflows=[SessionWorkflow, SharedStateWorkflow],
        activities=[
            plan.load_plan,
            plan.share_state,
            ModelActivity(registry, journals, models).call,
            ToolActivity(registry, journals, code).run,
        ],
        workflow_runner=workflow_runner([registry]),
        identity=config.identity,
        # Else Temporal hashes the code of every module that is loaded, which takes seconds; and it says less.
        build_id=f"{registry.plan.app}-{registry.plan.digest[:12]}",
        max_cached_workflows=config.max_cached_workflows,
        max_concurrent_activities=config.max_concurrent_activities,
        max_concurrent_local_activities=config.max_concurrent_activities,
        max_concurrent_workflow_tasks=config.max_concurrent_workflow_tasks,
        sticky_queue_schedule_to_start_timeout=config.sticky_timeout,
        max_heartbeat_throttle_interval=config.max_heartbeat_interval,
        default_heartbeat_throttle_interval=timedelta(seconds=_HEARTBEAT_SECONDS),
        graceful_shutdown_timeout=config.graceful_shutdown_timeout,
        debug_mode=config.debug,
        workflow_failure_exception_types=[Exception] if config.fail_workflows_on_defects else [],
    )


@functools.cache
def _code_runner(name: str, threads: int) -> CodeRunner:
    return CodeRunner(name, threads)


def workflow_runner(registries: Sequence[Registry]) -> WorkflowRunner:
    """Return what runs the workflows of some apps: Temporal's sandbox where custom agents run, else none.

    In the sandbox only `perdure.workflows` and the modules of custom agents are loaded afresh, and guarded; everything
    else passes through. Perdure's own workflow code needs no guard at run time, and is a third cheaper without one.
    """
    nodes = (node for registry in registries for node in registry.plan.nodes.values())
    modules = {node.code.partition(":")[0] for node in nodes if isinstance(node, CustomNode)}
    if not modules:
        return UnsandboxedWorkflowRunner()
    restrictions = replace(
        SandboxRestrictions.default,
        passthrough_modules=_AllBut({"perdure.workflows", *modules}),
        # A custom agent's module is loaded as its turn comes, which is no mistake to be warned of.
        import_notification_policy=SandboxImportNotificationPolicy.SILENT,
    )
    return SandboxedWorkflowRunner(restrictions=restrictions)


class _AllBut(set[str]):
    """The set of all module names but a few, what lies underneath them, and what they lie in.

    The sandbox asks for a module's name and for each package above it, so packages above are left out too.
    """

    def __contains__(self, name: object) -> bool:
        return not any(f"{name}.".startswith(f"{guarded}.") or f"{guarded}.".startswith(f"{name}.") for guarded in self)
