"""Traces by OpenTelemetry (extra `telemetry`) and metrics for Prometheus, of workers and of the HTTP API."""
