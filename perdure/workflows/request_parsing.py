"""Reads what an update brings, and says in the words of the message what is wrong with it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.errors import InvalidMessage
from perdure.messages.session import AnswerInput, InvocationInput, MessageInput
from perdure.messages.shared_state import StateChangeInput
from perdure.rules.intake import check_sent

_R = TypeVar("_R", bound=BaseModel)
_S = TypeVar("_S", bound=BaseModel)

_TAKES: dict[type[BaseModel], str] = {
    MessageInput: 'a message is {"content": {"parts": [{"text": "…"}]}}',
    AnswerInput: 'an answer is {"content": {"parts": [{"functionResponse": {"id": CALL_ID, "response": {…}}}]}}',
    InvocationInput: 'an invocation is named by {"invocation_id": INVOCATION_ID}',
    StateChangeInput: 'a change of state is {"request_id": ID, "state_delta": {KEY: VALUE}}',
}

_PLACES = 3
"""What is wrong is told of so many."""


def parsed(sent: RawValue, kind: type[_R], *others: type[_S]) -> _R | _S:
    """Return the request of one of these kinds that an update or a signal brings.

    Raises:
        ApplicationError: It is of none, or too much; the error does not quote it.
    """
    union: Any = kind
    for other in others:
        union |= other
    try:
        check_sent(sent.payload.data)
        request = workflow.payload_converter().from_payload(sent.payload, union)
    except InvalidMessage as error:
        raise _refused(str(error)) from None
    except ValidationError as error:
        raise _refused(f"{_TAKES.get(kind, kind.__name__)}; {_places(error, kind)}") from None
    except (RuntimeError, ValueError):
        # Its text could quote the value.
        raise _refused(f"{_TAKES.get(kind, kind.__name__)}; this is no JSON") from None
    if not isinstance(request, (kind, *others)):
        raise _refused(f"{_TAKES.get(kind, kind.__name__)}, in JSON; this is {type(request).__name__}")
    return request


def _places(error: ValidationError, kind: type[BaseModel]) -> str:
    """Return where a request is wrong, and how; of several kinds, as the first one."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    own = [one for one in found if not one["loc"] or one["loc"][0] == kind.__name__] or found
    told = [
        f"{'.'.join(str(part)[:50] for part in one['loc'] if part != kind.__name__) or 'it'}: {one['msg'][:200]}"
        for one in own
    ]
    more = f"; and {len(told) - _PLACES} more" if len(told) > _PLACES else ""
    return "; ".join(told[:_PLACES]) + more


def _refused(why: str) -> ApplicationError:
    return ApplicationError(why, type=InvalidMessage.__name__, non_retryable=True)
