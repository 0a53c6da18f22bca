"""Logs what the SDK's core says among the process's own lines, and reports the one defect that needs a restart.

A server that is away makes it say so at each of its requests; these lines are left out, since the process says it once
(`perdure.serving.server_watch`).

With its cache of sessions full, the core can lose the step of a session that it has taken from the server, after two
tasks of the session had to wait for a place. The server gives the step out again, and this worker's core takes it and
does nothing, until its process ends (decision 007). No issue is known. The core says so in one line, and nowhere else:
https://github.com/temporalio/sdk-rust/blob/main/crates/sdk-core/src/worker/workflow/workflow_stream.rs
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

__all__ = ["core_logging", "quiet_runtime"]

_LOST_STEP = "Extra buffered run should not have produced an activation"
_AWAY = re.compile(r"gRPC call \w+ retried|Error when recording heartbeat|tcp connect error")
_LOGGER = "temporalio.core"


def core_logging(on_lost_step: Callable[[], None] = lambda: None) -> LoggingConfig:
    """Return how a process's one runtime is to log: by Python's logger `temporalio.core`, from warnings on.

    Args:
        on_lost_step: Called, in any thread, when the core has lost a session's step. Default: that is only logged.
    """
    logger = logging.getLogger(_LOGGER)
    for known in [known for known in logger.filters if isinstance(known, _Listener)]:
        logger.removeFilter(known)
    logger.addFilter(_Listener(on_lost_step))
    forwarding = LogForwardingConfig(logger, append_target_to_name=False, prepend_target_on_message=False)
    return LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding)


@functools.cache
def quiet_runtime() -> Runtime:
    """Return a runtime whose core says nothing of requests that it makes again: whoever waits for them says so."""
    errors = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(errors)))


class _Listener(logging.Filter):
    """A filter that looks for one line, and leaves out what the core says of a server that is away."""

    def __init__(self, on_lost_step: Callable[[], None]) -> None:
        super().__init__()
        self._on_lost_step = on_lost_step

    def filter(self, record: logging.LogRecord) -> bool:
        if _LOST_STEP in record.getMessage():
            self._on_lost_step()
        return _AWAY.search(record.getMessage()) is None
