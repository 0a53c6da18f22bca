"""Metrics for Prometheus: Temporal's own of client and worker, and Perdure's, at one endpoint of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import get_args

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.runtime import LoggingConfig, PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError

from perdure.errors import DefinitionError
from perdure.journal.open_calls import SessionStatus
from perdure.logs import get_logger
from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS
from perdure.plan.nodes import LlmNode, Plan, ToolPlan
from perdure.telemetry.step_meter import HTTP_DURATION

__all__ = ["SessionCount", "prometheus_runtime"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_logger = get_logger("perdure.metrics")


def prometheus_runtime(address: str, logging: LoggingConfig = LoggingConfig.default) -> Runtime:
    """Return a runtime whose metrics Prometheus scrapes at `http://ADDRESS/metrics`; give it to `ConnectionConfig`.

    Args:
        address: `IP:PORT`; `0.0.0.0` is every address of this machine.
        logging: How Temporal's core logs. Default: warnings, to standard error.

    Raises:
        DefinitionError: The address is none, or it is taken.
    """
    host, _, port = address.rpartition(":")
    numeric = f"127.0.0.1:{port}" if host == "localhost" else address
    config = PrometheusConfig(
        bind_address=numeric,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides={HTTP_DURATION: _SECONDS},
    )
    try:
        telemetry = TelemetryConfig(metrics=config, attach_service_name=False, logging=logging)
        return Runtime(telemetry=telemetry)
    except ValueError as error:
        raise DefinitionError(
            f"metrics cannot be served at {address!r}: {error}; give an IP:PORT that is free"
        ) from error


class SessionCount:
    """Counts an app's open sessions now and then, by status and by the tool that they wait for.

    It asks Temporal's own index, so the numbers are right whatever process was restarted; each process that counts
    shows the same ones. Needs the search attributes.
    """

    def __init__(self, client: Client, plans: Iterable[Plan], meter: MetricMeter) -> None:
        """Count the sessions of some apps.

        Args:
            client: A client of the Temporal server.
            plans: The apps' plans, which say for which tools a session may wait.
            meter: Where the numbers go.
        """
        self._client = client
        self._tools = {plan.app: _awaited(plan) for plan in plans}
        self._sessions = meter.create_gauge("perdure_sessions", "Open sessions by status.")
        self._waiting = meter.create_gauge(
            "perdure_sessions_waiting_for", "Open sessions that wait for a tool's answer."
        )

    async def run(self, every: timedelta = timedelta(seconds=15)) -> None:
        """Count until cancelled; what Temporal does not answer is tried again the next time."""
        told = False
        while True:
            try:
                await self.count()
                told = False
            except RPCError as error:
                if not told:
                    _logger.warning("sessions cannot be counted", status=error.status.name)
                told = True
            await asyncio.sleep(every.total_seconds())

    async def count(self) -> None:
        """Count once.

        Raises:
            RPCError: Temporal did not answer, or lacks the search attributes.
        """
        for app, tools in self._tools.items():
            for status in get_args(SessionStatus):
                self._sessions.set(
                    await self._number(app, f"{STATUS.name} = '{status}'"), {"app": app, "status": status}
                )
            for tool in tools:
                number = await self._number(app, f"{PENDING_TOOLS.name} = '{tool}'")
                self._waiting.set(number, {"app": app, "tool": tool})

    async def _number(self, app: str, condition: str) -> int:
        query = f"{APP.name} = '{app}' AND ExecutionStatus = 'Running' AND {condition}"
        return (await self._client.count_workflows(query)).count


def _awaited(plan: Plan) -> Sequence[str]:
    """Return the tools for which a session may wait."""
    nodes = (node for node in plan.every_node if isinstance(node, LlmNode))
    tools = (tool for node in nodes for tool in node.tools)
    return sorted({tool.name for tool in tools if _may_wait(tool)})


def _may_wait(tool: ToolPlan) -> bool:
    return tool.kind == "long_running" or tool.confirmation != "never" or tool.at_most_once
