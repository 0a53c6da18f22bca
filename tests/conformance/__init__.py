"""Runs conformance scenarios (FORMAT.md) through the real client, worker and server."""
