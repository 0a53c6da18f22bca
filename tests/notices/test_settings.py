"""The file that says who is told: what it may say, and where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import DefinitionError
from perdure.notices.settings import NoticeSettings, read_settings

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"

WHOLE = f"""
link = "https://agents.example.com/"
tell = ["call.waiting", "invocation.failed"]
delay = 60
due_before = "PT30M"
remind_after = "PT4H"
content = true

[webhook]
url = "https://example.com/${{HOOK}}"
secret = "{SECRET}"
body = '{{"text": "$text"}}'

[mail]
smtp = "smtps://me:p%40ss@mail.example.com:465"
from = "Agents <agents@example.com>"
to = ["a@example.com", "b@example.com"]
"""


def test_a_whole_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "T0/B1")
    path = tmp_path / "notices.toml"
    path.write_text(WHOLE)
    settings = read_settings(path)
    assert settings.link == "https://agents.example.com"
    assert settings.tell == {"call.waiting", "invocation.failed"}
    assert settings.channels == ("webhook", "mail")
    assert settings.webhook is not None
    assert settings.webhook.url.get_secret_value() == "https://example.com/T0/B1"
    assert settings.webhook.key == b"012345678901234567890123"
    assert settings.mail is not None
    assert settings.mail.to == ("a@example.com", "b@example.com")
    assert (settings.delay.total_seconds(), settings.due_before.total_seconds()) == (60, 1800)
    assert all(secret not in repr(settings) for secret in ("T0/B1", SECRET, "p%40ss"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"neither \[webhook\] nor \[mail\]"),
        ("=", "cannot be read: Invalid"),
        ("[webhook]", "webhook.url: Field required"),
        ('[webhook]\nurl = "ftp://example.com"', "webhook.url: .*expected https://HOST/PATH"),
        ('[webhook]\nurl = "https://e.org"\nsecret = "abc"', "webhook.secret: .*openssl rand -base64 32"),
        ('[webhook]\nurl = "https://e.org"\nsecret = "whsec_!"', "webhook.secret: .*no base64"),
        ('[webhook]\nurl = "https://e.org"\nsecret = "whsec_YWJj"', "webhook.secret: .*too short"),
        ('[webhook]\nurl = "https://e.org"\nbody = "text: $text"', "webhook.body: .*Expecting value"),
        ('[webhook]\nurl = "https://e.org"\nbody = \'{"a": "$txt"}\'', r"webhook.body: .*\$txt is no place.*\$text"),
        ('[webhook]\nurl = "https://e.org"\nurls = 1', "webhook.urls: Extra inputs"),
        ('[webhook]\nurl = "https://${NOT_SET_HERE}"', "names the variable NOT_SET_HERE, which is not set"),
        ('[mail]\nsmtp = "mail.example.com"\nfrom = "a@b"\nto = ["c@d"]', "mail.smtp: .*smtps://"),
        ('[mail]\nsmtp = "smtp://m"\nfrom = "a@b"\nto = []', "mail.to: "),
        ('[mail]\nsmtp = "smtp://m"\nfrom = "a@b"\nto = ["c@d\\nBcc: e@f"]', "mail.to: .*no address"),
        ('tell = ["call.waits"]\n[webhook]\nurl = "https://e.org"', "tell.*call.waiting"),
        ('link = "agents.example.com"\n[webhook]\nurl = "https://e.org"', "link: .*expected https://HOST"),
        ('delay = -1\n[webhook]\nurl = "https://e.org"', "delay: "),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_with_its_place_and_without_secrets(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "notices.toml"
    path.write_text(text)
    with pytest.raises(DefinitionError, match=told) as caught:
        read_settings(path)
    assert "abc" not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="No such file"):
        read_settings(tmp_path / "notices.toml")


@pytest.mark.parametrize(
    ("given", "deadline", "due"),
    [
        ({}, None, None),
        ({}, 100_000, 96_400),
        ({}, 1_600, 1_300),
        ({"due_before": 100}, 1_600, 1_500),
        ({"remind_after": 500}, None, 1_500),
        ({"remind_after": 500, "tell": ["call.waiting"]}, None, None),
        ({"tell": ["invocation.failed"]}, 100_000, None),
    ],
    ids=str,
)
def test_when_a_call_is_due(given: dict[str, object], deadline: float | None, due: float | None) -> None:
    """Made at 1,000."""
    assert NoticeSettings.model_validate(given).due(1_000, deadline) == due
