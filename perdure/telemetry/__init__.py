"""Traces by OpenTelemetry (extra `telemetry`) and metrics for Prometheus, of workers and of the HTTP API.

Here belongs what counts or traces; `step` is all that the code which is watched has to know.
"""
