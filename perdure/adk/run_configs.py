"""The configuration that a step's code sees of its run."""

from __future__ import annotations

from typing import Any

from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage] -- no other place in 1.x
from opentelemetry import _logs, trace

try:
    from google.adk.telemetry import TelemetryConfig
except ImportError:
    TelemetryConfig: Any = None  # not in 1.x

_OF_THE_API = ("opentelemetry.trace", "opentelemetry._logs")
"""Where the providers are from that stand for none."""


def run_config(*, streams: bool) -> RunConfig:
    """Return the configuration of a run whose models answer piece by piece, or whole.

    Where nobody collects spans or logs, google.adk 2 does not describe each request for them: of a conversation of a
    hundred events that is a third of a model's step.
    """
    telemetry: dict[str, Any] = {}
    if TelemetryConfig is not None and "telemetry" in RunConfig.model_fields and not _collected():
        telemetry["telemetry"] = TelemetryConfig(genai_semconv_stability_opt_in="stable")
    return RunConfig(streaming_mode=StreamingMode.SSE if streams else StreamingMode.NONE, **telemetry)


def _collected() -> bool:
    providers = (trace.get_tracer_provider(), _logs.get_logger_provider())
    return not all(type(one).__module__.startswith(_OF_THE_API) for one in providers)
