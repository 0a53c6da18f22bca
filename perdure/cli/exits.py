"""Exit codes, and an end of the process that cannot fail after the work is done."""

from __future__ import annotations

import logging
import os
import sys
from enum import IntEnum
from typing import NoReturn


class ExitCode(IntEnum):
    """The exit codes of commands. click's own 2 for wrong usage is moved, since ADK's 2 means waiting."""

    FINISHED = 0
    """The work is done."""
    FAILED = 1
    """The invocation failed or is stopped, the request was refused, or the app cannot be loaded."""
    WAITING = 2
    """The invocation waits for an answer."""
    USAGE = 64
    """The command was given wrongly (sysexits' EX_USAGE)."""
    NO_SERVER = 69
    """No Temporal server answers (sysexits' EX_UNAVAILABLE)."""
    INTERRUPTED = 130
    """Ctrl-C; what runs in Temporal runs on."""
    BROKEN_PIPE = 141
    """The reader of the output has gone."""


def leave(code: int) -> NoReturn:
    """End the process with a code, its output written.

    The interpreter's own way out can abort after success while threads of temporalio's core still run
    (https://github.com/temporalio/sdk-python/issues/300), so it is not taken.
    """
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = ExitCode.BROKEN_PIPE
    os._exit(code)
