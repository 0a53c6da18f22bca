"""Checks conversations by what Gemini, OpenAI and Anthropic, taken together, would refuse with HTTP 400."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from google.genai import types

_DATA = (
    *("function_call", "function_response", "inline_data", "file_data"),
    *("executable_code", "code_execution_result", "tool_call", "tool_response"),
)


def refusals(contents: Sequence[types.Content], *, by_id: bool) -> list[str]:
    """Return why a provider would refuse a conversation; empty if none would.

    Args:
        contents: The contents of a model call.
        by_id: The provider pairs calls and responses by ids, rather than by order and name.
    """
    found = list(_opening(contents))
    for index, content in enumerate(contents):
        parts = content.parts or []
        if content.role not in ("user", "model"):
            found.append(f"content {index} has the role {content.role!r}")
        if not parts:
            found.append(f"content {index} has no parts")
        found += [f"content {index}, part {number} is empty" for number, part in enumerate(parts) if _is_empty(part)]
        found += [f"content {index} {problem}" for problem in _misplaced(content)]
        following = contents[index + 1].parts or [] if index + 1 < len(contents) else []
        before = contents[index - 1].parts or [] if index else []
        found += [f"content {index} {problem}" for problem in _unpaired(parts, following, by_id=by_id)]
        if any(part.function_response for part in parts) and not any(part.function_call for part in before):
            found.append(f"content {index} has responses without calls right before it")
    return found + list(_ids(contents, by_id=by_id))


def gemini_refusals(contents: Sequence[types.Content]) -> list[str]:
    """Return why Gemini would refuse a conversation; empty if it would not.

    Beside what all ask for, a call comes behind a user or behind responses, and the user has the last word.
    https://ai.google.dev/gemini-api/docs/function-calling
    """
    found = refusals(contents, by_id=False)
    roles = [content.role for content in contents]
    for index, content in enumerate(contents):
        calls = any(part.function_call for part in content.parts or [])
        if calls and index and roles[index - 1] != "user":
            found.append(f"content {index} has calls behind a turn of the model's own")
    if roles and roles[-1] != "user":
        found.append("the last content is the model's own")
    return found


def _opening(contents: Sequence[types.Content]) -> Iterator[str]:
    if not contents:
        yield "there are no contents"
    elif contents[0].role != "user":
        yield "the first content is the model's own"


def _is_empty(part: types.Part) -> bool:
    if any(getattr(part, name) is not None for name in _DATA):
        return False
    return not (part.text or "").strip() and not part.thought_signature


def _misplaced(content: types.Content) -> Iterator[str]:
    parts = content.parts or []
    kinds = ["response" if part.function_response else "call" if part.function_call else "" for part in parts]
    if "call" in kinds and content.role != "model":
        yield "has calls that are no model's"
    if "response" in kinds and content.role != "user":
        yield "has responses in the model's own name"
    if "response" in kinds and any(kind == "response" for kind in kinds[kinds.count("response") :]):
        yield "has responses behind something else"


def _unpaired(parts: Sequence[types.Part], following: Sequence[types.Part], *, by_id: bool) -> Iterator[str]:
    """Yield what is wrong between the calls of a content and the responses in the next."""
    calls = [part.function_call for part in parts if part.function_call]
    responses = [part.function_response for part in following if part.function_response]
    if not calls:
        return
    if len(calls) != len(responses):
        yield f"has {len(calls)} calls, the next content {len(responses)} responses"
    elif [call.name for call in calls] != [response.name for response in responses]:
        yield "has calls to which the responses come in another order"
    elif [call.id for call in calls] != [response.id for response in responses]:
        yield "has calls to which the responses have other ids" if by_id else "has ids that only its calls have"


def _ids(contents: Sequence[types.Content], *, by_id: bool) -> Iterator[str]:
    calls = [part.function_call for content in contents for part in content.parts or [] if part.function_call]
    if by_id and not all(call.id for call in calls):
        yield "there are calls without an id"
    twice = sorted(call_id for call_id, count in Counter(call.id for call in calls if call.id).items() if count > 1)
    if twice:
        yield f"several calls have the id {twice[0]!r}"
