"""What user code raises, as an error that means nothing to threads, futures, generators and loops around the code."""

from __future__ import annotations

import asyncio
import re
from concurrent import futures

from perdure.errors import error_text

_MISUNDERSTOOD = (StopIteration, StopAsyncIteration, futures.CancelledError)
"""No future takes the first (https://github.com/python/cpython/issues/112182), generators around the call would take
the second for their own, and the third counts as the step's cancellation."""

_TAKEN_BY_PYTHON = re.compile(r"(async generator|coroutine|generator) raised Stop(Async)?Iteration")
"""What Python itself says of the first two, where code that is suspended raises them."""


def as_exception(error: BaseException) -> Exception:
    """Return what user code raised as an error of its call: itself, or a `RuntimeError` that says what it was."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and cause is not None and _TAKEN_BY_PYTHON.fullmatch(str(error)):
        return _stray(cause)
    if isinstance(error, Exception) and not isinstance(error, _MISUNDERSTOOD):
        return error
    return _stray(error)


def as_exception_of_task(error: BaseException) -> Exception:
    """Return what user code raised in the task that runs, as `as_exception` does.

    Raises:
        asyncio.CancelledError: The task was cancelled from outside, and that is it.
        GeneratorExit: No loop runs it any more: it is closed.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        raise error from None
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    return as_exception(error)


def _stray(error: BaseException) -> RuntimeError:
    what = error_text(error)
    if isinstance(error, StopIteration | StopAsyncIteration):
        text = f"the code raised {what}: next() found nothing more; give it a default: next(…, None)"
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"the code asked the process to exit: {what}"
    else:
        text = f"the code raised {what}, with which no call can end; catch it there, and raise an Exception"
    stray = RuntimeError(text)
    stray.__cause__ = error
    return stray
