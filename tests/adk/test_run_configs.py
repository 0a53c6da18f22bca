"""What a step's code sees of how its run is configured."""

from __future__ import annotations

import pytest
from opentelemetry import _logs, trace

from perdure.adk import internals
from perdure.adk.run_configs import run_config


class Collecting:
    """Stands for a provider of the SDK, or of anybody's."""


def test_models_stream_if_they_are_to() -> None:
    assert run_config(streams=True).streaming_mode.value == "sse"
    assert run_config(streams=False).streaming_mode.value is None


@pytest.mark.skipif(internals.MAJOR < 2, reason="google.adk 1 describes no requests so")
@pytest.mark.parametrize(
    ("module", "name"), [(trace, "get_tracer_provider"), (_logs, "get_logger_provider")], ids=["spans", "logs"]
)
def test_requests_are_described_only_if_somebody_collects_that(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setattr(_logs, "get_logger_provider", _logs.NoOpLoggerProvider)
    telemetry = run_config(streams=False).telemetry
    assert telemetry is not None
    assert not telemetry.should_use_experimental_genai_semconv
    monkeypatch.setattr(module, name, Collecting)
    assert run_config(streams=False).telemetry is None
