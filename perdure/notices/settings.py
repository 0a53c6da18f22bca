"""Settings of notices, and the TOML file that holds them."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from perdure.errors import DefinitionError
from perdure.messages.notices import Channel, Happening

__all__ = ["PLACES", "MailSettings", "NoticeSettings", "WebhookSettings", "read_settings"]

PLACES = ("text", "type", "link", "app", "user", "session", "agent", "tool")
"""What stands for itself in the body of a webhook, behind a `$`."""

_SECRET = "whsec_"  # noqa: S105 -- a prefix
_LEAST_SECRET = 24
_FROM_ENVIRONMENT = re.compile(r"\$\{(\w+)\}")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class WebhookSettings(_Settings):
    """An address that gets an HTTP POST for each notice, signed as https://www.standardwebhooks.com says."""

    url: SecretStr
    """`https://…` or `http://…`. Chat services have their password in it."""
    secret: SecretStr | None = None
    """`whsec_` and at least 24 bytes as base64, which the receiver has, too. Default: not signed."""
    body: str | None = None
    """JSON with places such as `$text`, for receivers with a form of their own. Default: the whole notice."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: SecretStr) -> SecretStr:
        parts = urlsplit(url.get_secret_value())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected https://HOST/PATH")
        return url

    @field_validator("secret")
    @classmethod
    def _is_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(_key_of(secret.get_secret_value())) < _LEAST_SECRET:
            raise ValueError(f"too short: {_LEAST_SECRET} random bytes at the least, as base64 behind {_SECRET!r}")
        return secret

    @field_validator("body")
    @classmethod
    def _is_json(cls, body: str | None) -> str | None:
        if body is not None:
            try:
                json.loads(Template(body).substitute(dict.fromkeys(PLACES, "")))
            except KeyError as error:
                known = ", ".join(f"${place}" for place in PLACES)
                raise ValueError(f"${error.args[0]} is no place; there are {known}") from error
        return body

    @property
    def key(self) -> bytes | None:
        """What signs, if anything does."""
        return None if self.secret is None else _key_of(self.secret.get_secret_value())


def _key_of(secret: str) -> bytes:
    if not secret.startswith(_SECRET):
        raise ValueError(f"expected {_SECRET!r} and base64, as `echo {_SECRET}$(openssl rand -base64 32)` prints")
    try:
        return base64.b64decode(secret.removeprefix(_SECRET), validate=True)
    except binascii.Error as error:
        raise ValueError(f"what stands behind {_SECRET!r} is no base64") from error


class MailSettings(_Settings):
    """A mail server, and who gets the mails."""

    smtp: SecretStr
    """`smtps://USER:PASSWORD@HOST:465`, or `smtp://…:587`, where TLS is begun before anything is said, unless the host
    is this machine. User and password are percent-encoded; leave them out where none are asked for."""
    sender: str = Field(alias="from", min_length=3)
    to: tuple[str, ...] = Field(min_length=1)

    @field_validator("smtp")
    @classmethod
    def _is_address(cls, smtp: SecretStr) -> SecretStr:
        parts = urlsplit(smtp.get_secret_value())
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
            raise ValueError("expected smtps://USER:PASSWORD@HOST:PORT or smtp://…")
        return smtp

    @field_validator("sender", "to")
    @classmethod
    def _is_one_line(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for one in (value,) if isinstance(value, str) else value:
            if "@" not in one or not one.isprintable():
                raise ValueError(f"{one!r} is no address")
        return value


class NoticeSettings(_Settings):
    """Who is told of what, and when. Made from a file by `read_settings`."""

    tell: frozenset[Happening] = frozenset({"call.waiting", "call.due", "invocation.failed"})
    """What is told. Default: all."""
    link: str | None = None
    """Address of the HTTP API's pages as readers reach them, `https://agents.example.com`: each notice links to the
    call, or the session. Default: no link."""
    delay: timedelta = Field(timedelta(0), ge=timedelta(0))
    """How long to wait first: what is answered by then is not told. Default: not at all."""
    due_before: timedelta = Field(timedelta(hours=1), ge=timedelta(0))
    """A call with a deadline is told of once more so long before it. Default: an hour."""
    remind_after: timedelta | None = Field(None, gt=timedelta(0))
    """A call without a deadline is told of once more when it has waited so long. Default: it is not."""
    content: bool = False
    """Say also what the user wrote, the call's arguments, and why an invocation failed. Default: no, the link leads to
    that."""
    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None

    @field_validator("link")
    @classmethod
    def _is_link(cls, link: str | None) -> str | None:
        if link is not None and urlsplit(link).scheme not in ("http", "https"):
            raise ValueError("expected https://HOST")
        return link.rstrip("/") if link else None

    @property
    def channels(self) -> tuple[Channel, ...]:
        """By what is told."""
        channels: tuple[Channel, ...] = ("webhook", "mail")
        return tuple(channel for channel in channels if getattr(self, channel) is not None)

    def due(self, since: float, deadline: float | None) -> float | None:
        """Return when to tell of a call once more, in seconds since the epoch; `None` for never."""
        if "call.due" not in self.tell:
            return None
        if deadline is not None:
            # Where the whole time is short, half of it.
            return max(deadline - self.due_before.total_seconds(), (since + deadline) / 2)
        return None if self.remind_after is None else since + self.remind_after.total_seconds()


def read_settings(path: Path) -> NoticeSettings:
    """Return the settings in a TOML file; `${NAME}` stands for an environment variable.

    Raises:
        DefinitionError: The file cannot be read, or says what no setting is; the error says where.
    """
    try:
        given = cast("dict[str, Any]", _filled(tomllib.loads(path.read_text(encoding="utf-8"))))
        settings = NoticeSettings.model_validate(given)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DefinitionError(f"notices: {str(path)!r} cannot be read: {reason}") from error
    except KeyError as error:
        raise DefinitionError(f"notices: {str(path)!r} names the variable {error.args[0]}, which is not set") from error
    except ValidationError as error:
        # Not what was given: that may be a secret.
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise DefinitionError(f"notices: {str(path)!r}: {'; '.join(problems)}") from None
    if not settings.channels:
        raise DefinitionError(f"notices: {str(path)!r} has neither [webhook] nor [mail], so nobody would be told")
    return settings


def _filled(value: object) -> object:
    if isinstance(value, str):
        return _FROM_ENVIRONMENT.sub(lambda found: os.environ[found[1]], value)
    if isinstance(value, dict):
        return {key: _filled(inner) for key, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_filled(inner) for inner in cast("list[object]", value)]
    return value
