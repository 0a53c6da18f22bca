"""Chooses what runs workflow code: Temporal's sandbox around custom agents, and nothing around Perdure's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import SandboxImportNotificationPolicy

from perdure.compiler.registry import AnyRegistry
from perdure.plan.nodes import CustomNode
from perdure.temporal.query_guard import GuardedRunner, GuardedSandbox


def workflow_runner(registries: Sequence[AnyRegistry], *, guarded: bool = False) -> WorkflowRunner:
    """Return the runner of some apps' workflows: Temporal's sandbox where custom agents run, else none.

    `guarded` is for workers that are asked while they work (`perdure/temporal/query_guard.py`).

    In the sandbox only `perdure.workflows` and the modules of Perdure's custom agents are loaded afresh, and guarded;
    everything else passes through. Perdure's own workflow code needs no guard at run time, and is a third cheaper
    without one.
    """
    nodes = (node for registry in registries if registry.plan.adk is None for node in registry.plan.every_node)
    modules = {node.code.partition(":")[0] for node in nodes if isinstance(node, CustomNode)}
    if not modules:
        return GuardedRunner() if guarded else UnsandboxedWorkflowRunner()
    restrictions = replace(
        SandboxRestrictions.default,
        passthrough_modules=_AllBut({"perdure.workflows", *modules}),
        # A custom agent's module is loaded as its turn comes, which is no mistake to be warned of.
        import_notification_policy=SandboxImportNotificationPolicy.SILENT,
    )
    return (GuardedSandbox if guarded else SandboxedWorkflowRunner)(restrictions=restrictions)


class _AllBut(set[str]):
    """The set of all module names but a few, what lies underneath them, and what they lie in.

    Temporal's own setting is a list of names, or all: https://github.com/temporalio/sdk-python/issues/691
    The sandbox asks for a module's name and for each package above it, so packages above are left out too.
    """

    def __contains__(self, name: object) -> bool:
        return not any(f"{name}.".startswith(f"{guarded}.") or f"{guarded}.".startswith(f"{name}.") for guarded in self)

    def __or__(self, value: Any) -> _AllBut:
        """Return itself: what a debugger adds passes through already."""
        return self
