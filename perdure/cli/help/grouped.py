"""Help in groups: what most people need on the first screen, and the rest under headings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

_GROUPS: dict[str, tuple[str, ...]] = {
    "HTTP API": (
        "with_api",
        "host",
        "auth",
        "allow_origins",
        "auto_create_session",
        "default_app",
        "temporal_ui",
        "max_body",
        "patience",
    ),
    "Limits of the worker": (
        "max_activities",
        "tool_threads",
        "max_sessions",
        "max_workflow_tasks",
        "sticky_timeout",
        "heartbeats",
        "steps_per_activity",
        "grace",
    ),
    "Telling people": ("notify",),
    "Streaming and deployment": ("stream_listen", "deployment", "build_id", "versioning"),
    "Connection to Temporal": ("namespace", "profile", "config_file", "payload_storage", "grpc_compression"),
    "Secrets and what is kept of them": ("credentials", "payload_codec", "encryption_keys", "redact"),
    "Logs, metrics and traces": ("log_json", "metrics", "otel"),
}
"""By heading, the parameters that stand under it; all others are on the first screen."""


class GroupedCommand(click.Command):
    """A command whose help has its options in groups."""

    def __init__(self, *args: Any, first: Sequence[str] = (), **options: Any) -> None:
        """Make it; `first` are the parameters that stand first, in this order, even if they have a group."""
        super().__init__(*args, **options)
        self._first = tuple(first)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        records: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                records[parameter.name] = record
        grouped = {name for names in _GROUPS.values() for name in names} - set(self._first)
        ordered = [*(name for name in self._first if name in records), *(n for n in records if n not in self._first)]
        screens = {"Options": [records[name] for name in ordered if name not in grouped]}
        for heading, names in _GROUPS.items():
            screens[heading] = [records[name] for name in names if name in records and name in grouped]
        for heading, rows in screens.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
