"""`notify`: tries the channels by which people are told."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import json_option
from perdure.cli.output import show_json, show_table

if TYPE_CHECKING:
    from perdure.notices.settings import NoticeSettings


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def notify(file: Path, as_json: bool) -> int:
    """Send a notice that says it is a test, by each channel in FILE, as a worker with --notify FILE sends others.

    \b
    Example:
      perdure notify notices.toml
    """
    from perdure.notices.settings import read_settings

    said = asyncio.run(_try_all(read_settings(file)))
    if as_json:
        show_json(said)
    else:
        show_table(("CHANNEL", "RESULT"), list(said.items()))
    return ExitCode.FINISHED if set(said.values()) == {_SENT} else ExitCode.FAILED


_SENT = "sent"


async def _try_all(settings: NoticeSettings) -> dict[str, str]:
    """Return what became of a notice, by channel."""
    from perdure.notices.notice import Notice
    from perdure.notices.sending import NotDelivered, send

    text = "This is a test: notices of what waits and fails come this way."
    notice = Notice("test", f"notice_{uuid.uuid4().hex}", time.time(), text, settings.link or "", {})
    said: dict[str, str] = {}
    for channel in settings.channels:
        try:
            await send(notice, channel, settings)
        except NotDelivered as error:
            said[channel] = str(error)
        else:
            said[channel] = _SENT
    return said
