"""`artifacts`: a session's files, listed, read and written where they are kept; and the options that say where.

These are the options of files and of secrets: what is kept outside of histories.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Command, SessionName, codec_options, found_in_module, json_option, session_options
from perdure.cli.output import clock, say, show_json, show_table, write_bytes
from perdure.escapes import escaped, escaped_json

if TYPE_CHECKING:
    from temporalio.converter import PayloadCodec

    from perdure.artifacts import ArtifactService, ArtifactVersion
    from perdure.credentials import CredentialStore

_T = TypeVar("_T")

_MODULE = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")

_option = click.option(
    "--artifacts",
    envvar="PERDURE_ARTIFACTS",
    metavar="FOLDER",
    help="Where artifacts are kept: a folder, or MODULE:NAME of an ArtifactService.  [default: nowhere; of dev,"
    " .perdure/artifacts]",
)

_credentials = click.option(
    "--credentials",
    envvar="PERDURE_CREDENTIALS",
    metavar="FOLDER",
    help="Where secrets of credentials are kept that tools ask users for: a folder, or MODULE:NAME of a"
    " CredentialStore.  [default: in histories, if these are encrypted; of dev, .perdure/credentials]",
)


def artifacts_option(command: Command) -> Command:
    """Give a command the option `artifacts`; `open_artifacts` reads it."""
    return _option(command)


def credentials_option(command: Command) -> Command:
    """Give a command the option `credentials`; `open_credentials` reads it."""
    return _credentials(command)


def storage_options(command: Command) -> Command:
    """Give a command the options `artifacts` and `credentials`; `open_storage` reads them."""
    return _option(_credentials(command))


def default_storage(options: dict[str, Any], folder: Path) -> None:
    """Let what the options do not say be kept in a folder."""
    for name in ("artifacts", "credentials"):
        options[name] = options[name] or str(folder / name)


def open_storage(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `artifacts` and the `credentials` that the options name, `None` for those that they do not.

    Raises:
        click.BadParameter: One cannot be loaded, or is a file.
    """
    return {"artifacts": open_artifacts(options["artifacts"]), "credentials": open_credentials(options["credentials"])}


def open_artifacts(where: str | None) -> ArtifactService | None:
    """Return the service that the option names, if any.

    Raises:
        click.BadParameter: It cannot be loaded, or is a file.
    """
    if not where:
        return None
    from perdure.artifacts import ArtifactService, FileArtifactService

    return _opened(where, "artifacts", ArtifactService, FileArtifactService)


def open_credentials(where: str | None) -> CredentialStore | None:
    """Return the store that the option names, if any.

    Raises:
        click.BadParameter: It cannot be loaded, or is a file.
    """
    if not where:
        return None
    from perdure.credentials import CredentialStore, FileCredentialStore

    return _opened(where, "credentials", CredentialStore, FileCredentialStore)


def _opened(where: str, name: str, kind: type[_T], in_folder: Callable[[str], _T]) -> _T:
    if _MODULE.fullmatch(where):
        return found_in_module(where, name, kind, f"--{name}")
    if Path(where).is_file():
        raise click.BadParameter(f"{where!r} is a file; name a folder", param_hint=f"--{name}")
    return in_folder(where)


def _required(where: str | None) -> ArtifactService:
    service = open_artifacts(where)
    if service is None:
        raise click.UsageError("say where artifacts are kept, by --artifacts or PERDURE_ARTIFACTS, as the worker does")
    return service


@click.group()
def artifacts() -> None:
    """Look at a session's artifacts, get and put them where they are kept, so no server is needed.

    \b
    Examples:
      perdure artifacts list travel --session trip-1 --artifacts .perdure/artifacts
      perdure artifacts get travel map.png --session trip-1 --output map.png
    """


_NAME = click.argument("filename", metavar="NAME")
_VERSION = click.option("--version", type=click.IntRange(min=0), help="Version.  [default: the latest]")


@artifacts.command("list")
@session_options(required=True)
@click.option("--versions", is_flag=True, help="All versions, not only the latest.")
@artifacts_option
@json_option
def list_(name: SessionName, versions: bool, artifacts: str | None, as_json: bool) -> int:
    """List a session's artifacts, and those that its user's sessions share (`user:…`).

    \b
    Example:
      perdure artifacts list travel --session trip-1
    """
    service, who = _required(artifacts), _who(name)

    async def read() -> list[tuple[str, ArtifactVersion]]:
        found: list[tuple[str, ArtifactVersion]] = []
        for filename in await service.list_artifact_keys(**who):
            known = await service.list_artifact_versions(**who, filename=filename)
            found += [(filename, version) for version in (known if versions else known[-1:])]
        return found

    found = _run(read())
    if as_json:
        for filename, version in found:
            show_json({"filename": filename, **version.model_dump(by_alias=True, exclude_none=True)})
    else:
        rows = [
            (filename, str(version.version), version.mime_type or "-", clock(version.create_time))
            for filename, version in found
        ]
        show_table(("NAME", "VERSION", "TYPE", "SAVED (UTC)"), rows)
    return ExitCode.FINISHED


@artifacts.command()
@session_options(required=True)
@_NAME
@_VERSION
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write, not the screen.")
@artifacts_option
@codec_options
@json_option
def get(
    name: SessionName,
    filename: str,
    version: int | None,
    output: Path | None,
    artifacts: str | None,
    codec: PayloadCodec | None,
    as_json: bool,
) -> int:
    """Write an artifact's content to standard output or a file; with --json, the part as ADK has it.

    A large result of a tool is encrypted where histories are; it takes the same keys to read it.

    \b
    Examples:
      perdure artifacts get travel plan.md --session trip-1
      perdure artifacts get travel user:map.png --session trip-1 --version 2 --output map.png
    """
    from perdure.artifacts.sealing import SealedArtifacts

    service, who = SealedArtifacts(_required(artifacts), codec), _who(name)
    part = _run(service.load_artifact(**who, filename=filename, version=version))
    if part is None:
        which = filename if version is None else f"{filename}, version {version}"
        raise click.ClickException(f"there is no artifact {which!r} in this session")
    if as_json:
        _write(output, (escaped_json(part.model_dump_json(by_alias=True, exclude_none=True)) + "\n").encode())
        return ExitCode.FINISHED
    if part.inline_data is not None:
        content = part.inline_data.data or b""
    elif part.text is not None:
        content = (
            escaped(part.text, lines=True).encode() if output is None and sys.stdout.isatty() else part.text.encode()
        )
    else:
        raise click.ClickException(f"artifact {filename!r} only refers to its content; --json shows where it is")
    if output is None and part.inline_data is not None and sys.stdout.isatty():
        raise click.ClickException(f"artifact {filename!r} may be binary; name a file by --output, or use a pipe")
    _write(output, content)
    return ExitCode.FINISHED


@artifacts.command()
@session_options(required=True)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--name", "filename", help="The artifact's name.  [default: the file's]")
@click.option("--type", "mime_type", help="Its type; text/plain is kept as text.  [default: by the name]")
@artifacts_option
@json_option
def put(
    name: SessionName, file: Path, filename: str | None, mime_type: str | None, artifacts: str | None, as_json: bool
) -> int:
    """Save FILE, or standard input if it is `-`, as a new version of an artifact. No event tells of it.

    \b
    Examples:
      perdure artifacts put travel map.png --session trip-1
      perdure artifacts put travel - --name user:style.txt --session trip-1 < style.txt
    """
    from google.genai import types

    if filename is None and str(file) == "-":
        raise click.UsageError("standard input has no name; give one by --name")
    service, who = _required(artifacts), _who(name)
    filename = filename or file.name
    with click.open_file(str(file), "rb") as stream:
        content = stream.read()
    kind = mime_type or mimetypes.guess_type(filename)[0] or "application/octet-stream"
    try:
        part = types.Part(text=content.decode()) if kind == "text/plain" else None
    except UnicodeDecodeError:
        part = None
    part = part or types.Part.from_bytes(data=content, mime_type=kind)

    async def save() -> ArtifactVersion | None:
        version = await service.save_artifact(**who, filename=filename, artifact=part)
        return await service.get_artifact_version(**who, filename=filename, version=version)

    saved = _run(save())
    if saved is None:
        raise click.ClickException(f"artifact {filename!r} was deleted right after it was saved")
    if as_json:
        show_json({"filename": filename, **saved.model_dump(by_alias=True, exclude_none=True)})
    else:
        say(f"{filename}, version {saved.version}")
    return ExitCode.FINISHED


@artifacts.command()
@session_options(required=True)
@_NAME
@artifacts_option
@json_option
def delete(name: SessionName, filename: str, artifacts: str | None, as_json: bool) -> int:
    """Delete all versions of an artifact; one that does not exist is no error.

    \b
    Example:
      perdure artifacts delete travel map.png --session trip-1
    """
    service, who = _required(artifacts), _who(name)
    _run(service.delete_artifact(**who, filename=filename))
    if as_json:
        show_json({"filename": filename, "deleted": True})
    return ExitCode.FINISHED


def _who(name: SessionName) -> dict[str, Any]:
    return {"app_name": name.app, **name.key().arguments}


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    try:
        return asyncio.run(coroutine)
    except OSError as error:
        raise click.ClickException(f"artifacts cannot be reached: {error}") from error


def _write(output: Path | None, content: bytes) -> None:
    if output is None:
        write_bytes(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise click.ClickException(f"{str(output)!r} cannot be written: {error.strerror}") from error
