r"""Finds and fills the placeholders of an instruction, for state keys and artifacts. Pure.

ADK 2.13: `flows/llm_flows/prompt/_instructions_utils.py`, with its literal `${…}` and `\{…}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.errors import ModelError

_PLACEHOLDER = re.compile(r"(?<![${\\])(\{+)([^{}]*)\}+")
_STATE_PREFIXES = frozenset({"app", "user", "temp"})
_ARTIFACT = "artifact."


def artifact_names(template: str) -> list[str]:
    """Return the names of the artifacts that an instruction's `{artifact.NAME}` placeholders stand for."""
    keys = (match[2].strip().removesuffix("?") for match in _PLACEHOLDER.finditer(template))
    return list(dict.fromkeys(key.removeprefix(_ARTIFACT) for key in keys if key.startswith(_ARTIFACT)))


def required_keys(template: str) -> list[str]:
    """Return the state keys without which an instruction cannot be resolved: `{key}`, and not `{key?}`."""
    found = (match[2].strip() for match in _PLACEHOLDER.finditer(template) if not _is_lenient(match))
    return list(dict.fromkeys(key for key in found if _is_key(key)))


def resolve_instruction(template: str, state: Mapping[str, Any], artifacts: Mapping[str, str] | None = None) -> str:
    r"""Return an instruction with session state in place of its `{key}` and `{key?}` placeholders.

    A key is an identifier, if need be after `user:`, `app:` or `temp:`; other braces stay as they are, and so do those
    behind `$` or `\`. `{key?}` is empty where the key is missing, and `{{key}}` stays as it is. `{artifact.NAME}` and
    `{artifact.NAME?}` stand for the text of an artifact.

    Args:
        template: The agent's instruction.
        state: The session's state as the invocation sees it.
        artifacts: Texts of the artifacts that `artifact_names` names, where they exist.

    Raises:
        ModelError: A key or an artifact without `?` is missing. Not retried.
    """

    def value(match: re.Match[str]) -> str:
        name = match[2].strip()
        key = name.removesuffix("?")
        if key.startswith(_ARTIFACT):
            known = (artifacts or {}).get(key.removeprefix(_ARTIFACT))
        elif _is_key(key):
            known = _as_text(state[key]) if key in state else None
        else:
            return match[0]
        if known is not None:
            return known
        if key != name:
            return ""
        if _is_lenient(match):
            return match[0]
        raise _missing(key)

    return _PLACEHOLDER.sub(value, template)


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _is_lenient(match: re.Match[str]) -> bool:
    """Return whether doubled braces stand here: another language's, more often than a key's."""
    return len(match[1]) > 1


def _missing(key: str) -> ModelError:
    name = key.removeprefix(_ARTIFACT)
    if name != key:
        return ModelError(
            f"instruction needs artifact {name!r}, which does not exist; save it before the agent runs, or write"
            f" {{{key}?}} if it may be missing",
            retryable=False,
        )
    return ModelError(
        f"instruction needs state key {key!r}, which the session's state lacks; set it before the agent runs"
        f" (create_session(state=…), output_key, a tool), or write {{{key}?}} if it may be missing, or ${{{key}}} if"
        " the braces stand for themselves",
        retryable=False,
    )


def _is_key(name: str) -> bool:
    prefix, colon, key = name.rpartition(":")
    return key.isidentifier() and (not colon or prefix in _STATE_PREFIXES)
