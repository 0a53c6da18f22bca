"""Checks a request by Gemini 3's rule for thought signatures, before it is sent.

Of each step in the current turn the first function call must bring back the signature with which it came; Gemini 3
refuses the request otherwise. https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.genai import types

from perdure.errors import ModelError

_SINCE_GEMINI_3 = re.compile(r"gemini-(\d+)")

_REMEDY = (
    "carry the log over with its signatures, as an export does, or put"
    " thought_signature=b'skip_thought_signature_validator' into the call's part, with which Gemini lets calls pass"
    " that another model made"
)


def check_signatures(model: str, contents: Sequence[types.Content]) -> None:
    """Check that a conversation has the signatures that its model asks for.

    Raises:
        ModelError: A step of the current turn has none. Not retried: the same conversation will be refused again.
    """
    if not _asks_for_signatures(model):
        return
    for content in contents[_start_of_turn(contents) :]:
        parts = content.parts or []
        call = next((part.function_call for part in parts if part.function_call), None)
        # A signature beside the call may do: only what is sure to be refused is refused here.
        if call is not None and content.role == "model" and not any(part.thought_signature for part in parts):
            raise ModelError(
                f"model {model!r} takes no function call back without its thought signature, and the call"
                f" {call.name!r} ({call.id or 'without an id'}) in the conversation has lost it; {_REMEDY}",
                retryable=False,
            )


def _asks_for_signatures(model: str) -> bool:
    name = model.rpartition("/")[2]
    version = _SINCE_GEMINI_3.match(name)
    # The image models are told to send them, and not refused without.
    return version is not None and int(version[1]) >= 3 and "image" not in name


def _start_of_turn(contents: Sequence[types.Content]) -> int:
    """Return where the newest turn starts: at the last content of the user that is more than function responses."""
    for index in range(len(contents) - 1, -1, -1):
        parts = contents[index].parts or []
        if contents[index].role == "user" and any(part.function_response is None for part in parts):
            return index
    return 0
