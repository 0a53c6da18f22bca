"""`perdure notify` tries each channel, and says what became of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Perdure, perdure
from tests.notices.mailboxes import mailbox
from tests.notices.webhooks import webhook

__all__ = ["perdure"]


def settings(path: Path, url: str, smtp: str) -> str:
    path.write_text(
        f'[webhook]\nurl = "{url}"\n[mail]\nsmtp = "{smtp}"\nfrom = "a@example.com"\nto = ["b@example.com"]\n'
    )
    return str(path)


async def test_each_channel_is_tried(perdure: Perdure, tmp_path: Path) -> None:
    with webhook() as told:
        async with mailbox() as box:
            file = settings(tmp_path / "notices.toml", told.url, box.url)
            done = await perdure("notify", file)
            assert (done.code, done.out.split()) == (0, ["CHANNEL", "RESULT", "webhook", "sent", "mail", "sent"])
            [(_, body)] = told.got
            assert json.loads(body)["type"] == "test"
            assert "This is a test" in box.got[0]["subject"]
            told.answers.append((403, {}))
            done = await perdure("notify", file, "--json")
            assert (done.code, json.loads(done.out)) == (
                1,
                {"webhook": "the webhook answers with status 403", "mail": "sent"},
            )


@pytest.mark.parametrize("command", [("notify",), ("worker", "no.such:app", "--notify")], ids=["notify", "worker"])
async def test_a_file_that_is_wrong_is_told_before_anything_else(
    perdure: Perdure, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "notices.toml"
    path.write_text("[webhook]\nadress = 1\n")
    done = await perdure(*command, str(path))
    assert done.code != 0
    assert "webhook.url: Field required; webhook.adress: Extra inputs are not permitted" in " ".join(done.err.split())
