"""`Notice`: what people are told, in the words of a mail and of a webhook's JSON. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from string import Template
from typing import Any, Literal

from perdure.escapes import escaped
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_RECONCILE, asked_about
from perdure.journal.open_calls import PendingCall
from perdure.messages.addresses import session_path
from perdure.messages.keys import SessionKey
from perdure.messages.notices import Happening
from perdure.messages.session import InvocationView
from perdure.notices.settings import NoticeSettings
from perdure.views.pages import awaited_tool, time_text

_MAX_CONTENT = 4_000
"""Characters of each content in a mail. JSON has it whole: arguments are bounded as calls are listed."""


@dataclass(frozen=True)
class Notice:
    """Something that has happened in a session, as it is told."""

    type: Happening | Literal["test"]
    id: str
    """The same for each attempt to send it."""
    at: float
    """Seconds since the epoch."""
    text: str
    """One line that says it all; names in it are escaped, so that a chat service finds no markup."""
    link: str
    """Where to answer, or to look; empty if no address is known."""
    data: dict[str, Any]
    """All that is known, in plain values."""

    def json(self) -> str:
        """Return it as the JSON of a webhook."""
        told = {"type": self.type, "timestamp": time_text(self.at), "text": self.text, "data": self.data}
        return json.dumps(told, ensure_ascii=False)

    def filled_in(self, body: str) -> str:
        """Return a webhook's own body with this notice in its places."""
        places = {"text": self.text_with_link, "type": self.type, "link": self.link}
        places |= {name: str(self.data.get(name, "")) for name in ("app", "user", "session", "agent", "tool")}
        return Template(body).substitute({name: json.dumps(value)[1:-1] for name, value in places.items()})

    @property
    def text_with_link(self) -> str:
        """The line, and the link behind it."""
        return f"{self.text} {self.link}".rstrip()

    def mail(self) -> str:
        """Return it as the text of a mail."""
        lines = [self.text, *([self.link] if self.link else []), ""]
        lines += [
            f"{name}: {self.data[name]}" for name in ("agent", "tool", "since", "deadline", "step") if name in self.data
        ]
        content = [
            (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))
            for name in ("message", "args", "cause")
            if (value := self.data.get(name)) is not None
        ]
        for name, value in content:
            text = escaped(value, lines=True)
            left_out = f" … ({len(text) - _MAX_CONTENT:,} more characters)" if len(text) > _MAX_CONTENT else ""
            lines += ["", f"{name}:", text[:_MAX_CONTENT] + left_out]
        return "\n".join([*lines, ""])


def of_call(key: SessionKey, call: PendingCall, happened: Happening, settings: NoticeSettings, *, at: float) -> Notice:
    """Return the notice of a call that waits.

    Args:
        key: Its session.
        call: As the session lists it.
        happened: That it waits, or that it is due.
        settings: Whether to tell content, and where the pages are.
        at: Now, in seconds since the epoch.
    """
    tool = awaited_tool(call)
    data: dict[str, Any] = {
        **_named(key, call.invocation_id),
        "agent": call.agent,
        "call": call.id,
        "tool": tool,
        "asks": _KINDS.get(call.name, "answer"),
        "since": time_text(call.since),
    }
    by = ""
    if call.deadline is not None:
        data["deadline"] = time_text(call.deadline)
        by = f", by {data['deadline']}"
    if settings.content:
        data["args"] = asked_about(call.args).get("args", call.args) if call.name in _KINDS else call.args
        if call.message:
            data["message"] = call.message
    still = "still " if happened == "call.due" else ""
    text = f"{_plain(call.agent)} {still}waits for {_WORDS.get(call.name, 'an answer to')} {_plain(tool)}{by}"
    return _notice(happened, key, call.id, f"{text} ({key.workflow_id})", settings, data, at, ("calls", call.id))


_KINDS = {REQUEST_CONFIRMATION: "confirmation", REQUEST_CREDENTIAL: "credential", REQUEST_RECONCILE: "reconcile"}
_WORDS = {
    REQUEST_CONFIRMATION: "an approval of",
    REQUEST_CREDENTIAL: "a credential for",
    REQUEST_RECONCILE: "a word on what became of",
}


def of_failure(
    key: SessionKey, invocation: InvocationView, number: int, settings: NoticeSettings, *, at: float
) -> Notice:
    """Return the notice of an invocation that has failed; `number` tells its failures apart."""
    data = _named(key, invocation.id)
    where = ""
    if invocation.failures:
        first = invocation.failures[0]
        data |= {"agent": first.agent, "step": first.step}
        where = f" at {_plain(first.step)} of {_plain(first.agent)}"
        if settings.content:
            data["cause"] = first.cause
    data["resumable"] = invocation.resumable
    text = f"an invocation has failed{where} ({key.workflow_id})"
    return _notice("invocation.failed", key, f"{invocation.id}/{number}", text, settings, data, at, ())


def _named(key: SessionKey, invocation_id: str) -> dict[str, Any]:
    return {"app": key.app, "user": key.user, "session": key.session, "invocation": invocation_id}


def _notice(
    happened: Happening,
    key: SessionKey,
    what: str,
    text: str,
    settings: NoticeSettings,
    data: dict[str, Any],
    at: float,
    below: tuple[str, ...],
) -> Notice:
    link = settings.link + session_path(key, *below) if settings.link is not None else ""
    if link:
        data["link"] = link
    named = sha256(f"{happened}/{key.workflow_id}/{what}".encode(errors="replace")).hexdigest()[:32]
    return Notice(type=happened, id=f"notice_{named}", at=at, text=text, link=link, data=data)


def _plain(name: str) -> str:
    """Return a name without what a chat service, or a terminal, reads as markup."""
    return "".join(character if character.isalnum() or character in "_-.:/ " else "?" for character in escaped(name))
