"""Sends a notice by a channel: an HTTP POST, or a mail."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import smtplib
import ssl
from base64 import b64encode
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from perdure.messages.notices import Channel
from perdure.notices.notice import Notice
from perdure.notices.settings import MailSettings, NoticeSettings, WebhookSettings

__all__ = ["NotDelivered", "send"]

_TIMEOUT = 20.0
"""Seconds for one attempt, or for each of its steps."""

_LONGEST_PAUSE = 3600.0

_LATER = frozenset({408, 425, 429})
"""Statuses of 4xx that say nothing against the notice itself."""

_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class NotDelivered(Exception):
    """A notice was not taken.

    Attributes:
        again: Another attempt may succeed.
        pause: Seconds that the receiver asks to wait first, if it says so.
    """

    def __init__(self, message: str, *, again: bool = True, pause: float | None = None) -> None:
        super().__init__(message)
        self.again = again
        self.pause = pause


async def send(notice: Notice, channel: Channel, settings: NoticeSettings) -> None:
    """Send a notice.

    Raises:
        NotDelivered: It was not taken, or this process has no such channel.
    """
    if channel == "webhook" and settings.webhook is not None:
        await _post(notice, settings.webhook)
    elif channel == "mail" and settings.mail is not None:
        await _mail(notice, settings.mail)
    else:
        raise NotDelivered(f"this worker was given no [{channel}] to send notices by")


async def _post(notice: Notice, webhook: WebhookSettings) -> None:
    body = (notice.json() if webhook.body is None else notice.filled_in(webhook.body)).encode()
    headers = {"content-type": "application/json", "webhook-id": notice.id, "webhook-timestamp": str(int(notice.at))}
    if webhook.key is not None:
        headers["webhook-signature"] = _signature(headers, body, webhook.key)
    try:
        # Redirects would carry what is told to who knows where.
        async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
            response = await client.post(webhook.url.get_secret_value(), content=body, headers=headers)
    except httpx.HTTPError as error:
        # Its text may have the address, which may be a secret.
        raise NotDelivered(f"the webhook cannot be reached: {type(error).__name__}") from None
    if response.is_success:
        return
    pause = response.headers.get("retry-after", "")
    raise NotDelivered(
        f"the webhook answers with status {response.status_code}",
        again=response.status_code >= 500 or response.status_code in _LATER,
        pause=min(float(pause), _LONGEST_PAUSE) if pause.isascii() and pause.isdigit() else None,
    )


def _signature(headers: dict[str, str], body: bytes, key: bytes) -> str:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    return f"v1,{b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


async def _mail(notice: Notice, mail: MailSettings) -> None:
    message = EmailMessage()
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.to)
    message["Subject"] = notice.text
    message["Date"] = formatdate(notice.at)
    # The same for each attempt, so that a mailbox keeps one.
    message["Message-ID"] = f"<{notice.id}@{_host_of(mail.sender)}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notice.mail())
    try:
        await asyncio.to_thread(_hand_over, message, urlsplit(mail.smtp.get_secret_value()))
    except smtplib.SMTPResponseException as error:
        raise NotDelivered(f"the mail server answers with {error.smtp_code}", again=error.smtp_code < 500) from None
    except smtplib.SMTPRecipientsRefused as error:
        codes = sorted({code for code, _ in error.recipients.values()})
        raise NotDelivered(f"the mail server refuses the receivers: {codes}", again=min(codes) < 500) from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotDelivered(f"the mail server cannot be reached: {type(error).__name__}") from None


def _host_of(sender: str) -> str:
    return sender.rpartition("@")[2].strip("> ")


def _hand_over(message: EmailMessage, address: SplitResult) -> None:
    host = address.hostname or ""
    context = ssl.create_default_context()
    if address.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, address.port or 465, timeout=_TIMEOUT, context=context)
    else:
        server = smtplib.SMTP(host, address.port or 587, timeout=_TIMEOUT)
    with server:
        if address.scheme == "smtp" and host not in _HERE:
            server.starttls(context=context)
        if address.username:
            server.login(unquote(address.username), unquote(address.password or ""))
        server.send_message(message)
