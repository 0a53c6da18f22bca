"""Counts the steps of agents in a worker's activities, by Temporal's own metric meters.

Where they can be read is the business of the worker's `temporalio.runtime.Runtime`; without metrics in it, counting
costs nothing. Attributes are names out of plans and code, never ids.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.messages.keys import SessionKey
from perdure.messages.session import ModelOutput
from perdure.telemetry.step import Step, observed

__all__ = ["HTTP_DURATION", "StepMeter", "error_name", "input_tokens", "output_tokens", "steps_at_work"]

HTTP_DURATION = "perdure_http_request_duration"
"""Histogram: how long the HTTP API takes until a response begins."""

_NAME = re.compile(r"[A-Za-z_][\w.]{0,63}")


_at_work: dict[int, Step] = {}


def steps_at_work() -> list[str]:
    """Return what this process's workers are at: the model calls, tools and functions, in words."""
    steps = (step.at_work for step in list(_at_work.values()))
    named = (f"{step.name} of {step.agent}" for step in steps if step.kind is not None)
    return [f"{name} ({count})" if count > 1 else name for name, count in Counter(named).items()]


@contextmanager
def _noted(step: Step) -> Generator[None]:
    _at_work[id(step)] = step
    try:
        yield
    finally:
        _at_work.pop(id(step), None)


class StepMeter(Interceptor):
    """Counts each attempt of a model call, tool or function, its outcome, and the tokens that models took and gave."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Put the counting in front of the activity."""
        return _Counting(next)


class _Counting(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        with observed() as step, _noted(step):
            try:
                return await super().execute_activity(input)
            except (asyncio.CancelledError, Exception) as error:
                step.error = error
                raise
            finally:
                for each in (step, *step.behind):
                    _count_step(each)


def _count_step(step: Step) -> None:
    if step.error is None:
        _count(step, "ok")
    elif isinstance(step.error, asyncio.CancelledError | CancelledError):
        _count(step, "cancelled")
    else:
        _count(step, "error")
        _count_failure(step, step.error)
    if isinstance(step.result, ModelOutput):
        _count_tokens(step, step.result)


def _app() -> str:
    workflow_id = activity.info().workflow_id
    return SessionKey.parse(workflow_id).app if workflow_id else ""


def _count(step: Step, outcome: str) -> None:
    if step.kind is None:
        return
    counter = activity.metric_meter().create_counter(
        "perdure_steps", "Attempts of model calls, tools and functions, by their outcome."
    )
    about = {"app": _app(), "agent": step.agent, "kind": step.kind, "step": step.name, "outcome": outcome}
    counter.add(1, about)


def _count_failure(step: Step, error: BaseException) -> None:
    if step.kind is None:
        return
    counter = activity.metric_meter().create_counter(
        "perdure_step_failures", "Attempts of model calls, tools and functions that failed, by the kind of error."
    )
    counter.add(1, {"app": _app(), "agent": step.agent, "step": step.name, "error": error_name(error)})


def _count_tokens(step: Step, output: ModelOutput) -> None:
    counter = activity.metric_meter().create_counter("perdure_tokens", "Tokens that models read and wrote.")
    about = {"app": _app(), "agent": step.agent, "model": step.model}
    for direction, tokens in (("input", input_tokens(output)), ("output", output_tokens(output))):
        if tokens:
            counter.add(tokens, {**about, "direction": direction})


def input_tokens(output: ModelOutput) -> int:
    """Return how many tokens a model read."""
    usage = output.answer.usage_metadata
    return ((usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)) if usage is not None else 0


def output_tokens(output: ModelOutput) -> int:
    """Return how many tokens a model wrote, its thoughts included."""
    usage = output.answer.usage_metadata
    return ((usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)) if usage is not None else 0


def error_name(error: BaseException) -> str:
    """Return the kind of an error: the type that it names, else its class; `other` where that is no name."""
    name = error.type if isinstance(error, ApplicationError) and error.type else type(error).__name__
    return name if _NAME.fullmatch(name) else "other"
