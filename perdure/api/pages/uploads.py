"""Reads a message with files from a form: small files become parts of it, large ones artifacts that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from mimetypes import guess_type

from fastapi import HTTPException, Request
from google.genai import types
from starlette.datastructures import UploadFile

from perdure.api.adk.artifacts import service_of
from perdure.api.base.backend import Backend
from perdure.api.base.config import ApiConfig
from perdure.api.pages.form_checks import read_form, request_id_of
from perdure.messages.keys import SessionKey

MOST_IN_MESSAGE = 1_250_000
"""Bytes of all files in a message: in base64, with a text beside them, the log takes no more."""

_MOST_TEXT = 2_000_000
_MOST_FILES = 50
_MOST_FIELDS = 20

_FORM = 20_000
"""Bytes of a form that are no file's and no text's: its fields, and what stands between the files."""

_KIND = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}")
_UNKNOWN = "application/octet-stream"
_SPECIAL = re.compile(r"[\x00-\x1f\x7f]")
_MOST_NAME = 200


@dataclass(frozen=True)
class Uploaded:
    """A file as it came."""

    name: str
    kind: str
    """Its MIME type."""
    data: bytes

    @property
    def part(self) -> types.Part:
        """The part of a message that it is."""
        return types.Part(inline_data=types.Blob(data=self.data, mime_type=self.kind, display_name=self.name))


@dataclass(frozen=True)
class Filled:
    """A form with a message and files, filled in."""

    fields: dict[str, str]
    files: tuple[Uploaded, ...]

    @property
    def text(self) -> str:
        """The message; empty if it is white space."""
        text = self.fields.get("message", "").replace("\r\n", "\n")
        return text if text.strip() else ""


def most_bytes(config: ApiConfig) -> int:
    """Return what the files of a message may have together."""
    return MOST_IN_MESSAGE if config.artifacts is None else max(MOST_IN_MESSAGE, config.max_body_bytes - _FORM)


async def read_message(request: Request) -> Filled:
    """Return a filled form; fields of files that nobody chose are left out.

    Raises:
        HTTPException: It is no form: 415. It is malformed, or has too many fields: 400.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return Filled(await read_form(request), ())
    fields, files = dict[str, str](), list[Uploaded]()
    async with request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS, max_part_size=_MOST_TEXT) as form:
        for name, value in form.multi_items():
            if isinstance(value, str):
                fields[name] = value
            elif value.filename:
                files.append(await _read(value))
    return Filled(fields, tuple(files))


async def _read(file: UploadFile) -> Uploaded:
    # Browsers give names without folders; others may give what they like.
    name = _SPECIAL.sub("", re.split(r"[/\\]", file.filename or "")[-1]).strip(" .")[:_MOST_NAME] or "file"
    kind = (file.content_type or "").partition(";")[0].strip().lower()
    if not _KIND.fullmatch(kind) or kind == _UNKNOWN:
        kind = guess_type(name)[0] or _UNKNOWN
    return Uploaded(name, kind, await file.read())


async def content_of(filled: Filled, key: SessionKey, backend: Backend) -> types.Content:
    """Return a message; files that do not fit into it are saved as artifacts of the session, once for each form.

    Raises:
        HTTPException: It is empty: 400. Its files are too large: 413.
    """
    _check_size(filled.files, backend.config)
    parts = [types.Part(text=filled.text)] if filled.text else []
    room = MOST_IN_MESSAGE
    for number, file in enumerate(filled.files):
        if len(file.data) <= room:
            room -= len(file.data)
            parts.append(file.part)
            continue
        await service_of(backend).save_artifact(
            app_name=key.app,
            **key.arguments,
            filename=file.name,
            artifact=types.Part(inline_data=types.Blob(data=file.data, mime_type=file.kind)),
            key=f"chat:{request_id_of(filled.fields)}:{number}",
        )
        # As google.adk's SaveFilesAsArtifactsPlugin has it.
        parts.append(types.Part(text=f'[Uploaded Artifact: "{file.name}"]'))
    if not parts:
        raise HTTPException(400, "the message is empty")
    return types.Content(role="user", parts=parts)


def _check_size(files: Sequence[Uploaded], config: ApiConfig) -> None:
    size, most = sum(len(file.data) for file in files), most_bytes(config)
    if size > most:
        remedy = "" if config.artifacts else "; a server with --artifacts takes larger ones"
        raise HTTPException(
            413, f"the files have {size / 1e6:.2f} MB, and those of a message may have {most / 1e6:.2f} MB{remedy}"
        )
