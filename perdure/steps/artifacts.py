"""Adds artifacts to a model's request: in its instruction's placeholders, and after a call of `load_artifacts`.

ADK: `utils/instructions_utils.py` and `tools/load_artifacts_tool.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.genai import types

from perdure.agents.artifacts import SessionArtifacts, load_artifacts
from perdure.artifacts.service import USER_PREFIX
from perdure.errors import ArtifactError, ModelError

_INLINE = ("image/", "audio/", "video/", "application/pdf")
_TEXTUAL = frozenset({"application/json", "application/xml", "application/csv", "image/svg+xml"})
"""Types beside `text/…` that a model gets as text; of SVG no model takes the image."""


async def placeholder_texts(names: Sequence[str], artifacts: SessionArtifacts) -> dict[str, str]:
    """Return the texts of the artifacts that an instruction names; those that do not exist are left out.

    Raises:
        ModelError: One is no text, has a name that cannot be one, or nobody said where artifacts are. Not retried.
    """
    texts: dict[str, str] = {}
    for name in names:
        try:
            part = await artifacts.load(name, None)
        except ArtifactError as error:
            raise ModelError(f"instruction needs artifact {name!r}: {error}", retryable=False) from error
        if part is None:
            continue
        text = _text(part)
        if text is None:
            raise ModelError(
                f"instruction needs artifact {name!r}, which is no text; leave the placeholder out, and give the agent"
                " the tool load_artifacts",
                retryable=False,
            )
        texts[name] = text
    return texts


async def offered_artifacts(
    contents: Sequence[types.Content], artifacts: SessionArtifacts
) -> tuple[str, list[types.Content]]:
    """Return the additions of the tool `load_artifacts` to an agent's instruction and to its contents.

    That is the names of all artifacts, and the contents of those that the newest content asks for: for this request
    only, so that they are in no log.

    Raises:
        ArtifactError: Nobody said where artifacts are kept.
    """
    return await _list_of_names(artifacts), await _loaded_contents(contents, artifacts)


async def _list_of_names(artifacts: SessionArtifacts) -> str:
    names = await artifacts.names()
    if not names:
        return ""
    return (
        f"You have a list of artifacts:\n{json.dumps(names, ensure_ascii=False)}\n\nWhen the user asks questions about"
        " any of them, call the `load_artifacts` function to load it. Always call it before you answer questions about"
        " artifacts, also if they have been loaded before: their contents are shown only once."
    )


async def _loaded_contents(contents: Sequence[types.Content], artifacts: SessionArtifacts) -> list[types.Content]:
    loaded: list[types.Content] = []
    for name in _asked_for(contents):
        part = await _load(name, artifacts)
        if part is not None:
            parts = [types.Part(text=f"Artifact {name} is:"), _shown(name, part)]
            loaded.append(types.Content(role="user", parts=parts))
    return loaded


def _asked_for(contents: Sequence[types.Content]) -> list[str]:
    names: list[str] = []
    for part in (contents[-1].parts or []) if contents else []:
        response = part.function_response
        if response is not None and response.name == load_artifacts.__name__:
            found: Any = (response.response or {}).get("artifact_names")
            names += [name for name in found if isinstance(name, str)] if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType] -- JSON
    return list(dict.fromkeys(names))


async def _load(name: str, artifacts: SessionArtifacts) -> types.Part | None:
    """Return an artifact; a model may leave the prefix out. What has no name that can be one does not exist."""
    for candidate in (name,) if name.startswith(USER_PREFIX) else (name, f"{USER_PREFIX}{name}"):
        try:
            part = await artifacts.load(candidate, None)
        except ArtifactError:
            continue
        if part is not None:
            return part
    return None


def _shown(name: str, part: types.Part) -> types.Part:
    """Return an artifact as a model takes it: what it cannot read is described."""
    blob = part.inline_data
    if blob is None:
        return part
    text = _text(part)
    if text is not None:
        return types.Part(text=text)
    kind = _kind(blob)
    if kind.startswith(_INLINE):
        return part
    size = len(blob.data or b"") / 1024
    return types.Part(text=f"[Binary artifact: {name}, type: {kind}, size: {size:.1f} KB. It cannot be shown.]")


def _text(part: types.Part) -> str | None:
    """Return an artifact's text; `None` if it has none."""
    blob = part.inline_data
    if blob is None:
        return part.text
    kind = _kind(blob)
    if kind.startswith("text/") or kind in _TEXTUAL:
        return (blob.data or b"").decode(errors="replace")
    return None


def _kind(blob: types.Blob) -> str:
    return (blob.mime_type or "application/octet-stream").partition(";")[0].strip().lower()
