"""Spans of model calls and tools, named and attributed by OpenTelemetry's conventions for generative AI.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ — names, ids and numbers; never what anybody says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from perdure.messages.keys import SessionKey
from perdure.messages.session import CALL_MODEL, ModelOutput
from perdure.telemetry.step import Step, observed
from perdure.telemetry.step_meter import error_name, input_tokens, output_tokens

__all__ = ["StepSpans"]

_OWN = "perdure:"
"""How types of activities begin that are Perdure's own."""


class StepSpans(ActivityInboundInterceptor):
    """Gives each model call, tool and function a span inside of its activity's."""

    def __init__(self, next: ActivityInboundInterceptor, tracer: Tracer) -> None:
        """Trace by a tracer."""
        super().__init__(next)
        self._tracer = tracer

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Run the activity in its span."""
        kind = activity.info().activity_type
        is_model = kind == CALL_MODEL
        if kind.startswith(_OWN) and not is_model:
            return await super().execute_activity(input)
        with (
            observed() as step,
            self._tracer.start_as_current_span(
                "chat" if is_model else f"execute_tool {kind}",
                kind=SpanKind.CLIENT if is_model else SpanKind.INTERNAL,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
        ):
            try:
                result = await super().execute_activity(input)
            except BaseException as error:
                span.set_attribute("error.type", error_name(error))
                span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                _describe(span, step)
                for further in step.behind:
                    self._trace_further(further)
            if isinstance(step.result, ModelOutput):
                span.set_attributes(_answer(step.result))
            return result

    def _trace_further(self, step: Step) -> None:
        """Make the span of a further step that the activity took."""
        is_model = step.kind == "model"
        span = self._tracer.start_span(
            "chat" if is_model else f"execute_tool {step.name}",
            kind=SpanKind.CLIENT if is_model else SpanKind.INTERNAL,
            start_time=step.began,
        )
        _describe(span, step)
        if step.error is not None:
            span.set_attribute("error.type", error_name(step.error))
            span.set_status(Status(StatusCode.ERROR))
        elif isinstance(step.result, ModelOutput):
            span.set_attributes(_answer(step.result))
        span.end(step.ended)


def _describe(span: Span, step: Step) -> None:
    info = activity.info()
    about: dict[str, AttributeValue] = {"perdure.attempt": step.attempt or info.attempt}
    if info.workflow_id:
        key = SessionKey.parse(info.workflow_id)
        about |= {"perdure.app": key.app, "gen_ai.conversation.id": key.session}
    if step.agent:
        about["gen_ai.agent.name"] = step.agent
    if step.invocation_id:
        about["perdure.invocation_id"] = step.invocation_id
    if step.kind == "model":
        span.update_name(f"chat {step.model}")
        about |= {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": step.model,
            "gen_ai.provider.name": step.provider,
        }
    elif step.kind == "tool":
        about |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": step.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": step.call_id,
        }
    elif step.kind == "function":
        span.update_name(f"run_activity {step.name}")
    span.set_attributes(about)


def _answer(output: ModelOutput) -> Mapping[str, AttributeValue]:
    event = output.answer
    about: dict[str, AttributeValue] = {}
    if event.usage_metadata is not None:
        about |= {
            "gen_ai.usage.input_tokens": input_tokens(output),
            "gen_ai.usage.output_tokens": output_tokens(output),
        }
        cached = event.usage_metadata.cached_content_token_count
        if cached:
            about["gen_ai.usage.cache_read.input_tokens"] = cached
    if event.model_version:
        about["gen_ai.response.model"] = event.model_version
    if event.finish_reason is not None:
        about["gen_ai.response.finish_reasons"] = [event.finish_reason.value.lower()]
    return about
