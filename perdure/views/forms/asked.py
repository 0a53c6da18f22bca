"""Tells programs what an open call asks, and whether an answer is one: a sentence, and a JSON schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never, cast

from perdure.journal.events import (
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    REQUEST_INPUT,
    REQUEST_RECONCILE,
    asked_about,
)
from perdure.journal.open_calls import PendingCall
from perdure.plan.nodes import Plan
from perdure.views.forms.credential_forms import sign_in_link
from perdure.views.forms.declared import answer_schema
from perdure.views.forms.schema_check import Schema, problem_of
from perdure.views.pages import awaited_tool

Kind = Literal["answer", "approval", "credential", "verdict", "input"]

_KINDS: Mapping[str, Kind] = {
    REQUEST_CONFIRMATION: "approval",
    REQUEST_CREDENTIAL: "credential",
    REQUEST_RECONCILE: "verdict",
    REQUEST_INPUT: "input",
}

_APPROVAL: Schema = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "payload": {"description": "What the tool gets beside it."}},
    "required": ["approved"],
    "additionalProperties": False,
}
_VERDICT: Schema = {
    "type": "object",
    "properties": {
        "happened": {"type": "boolean", "description": "Whether the call took effect."},
        "result": {"description": "What it returned, if it took effect."},
        "run_again": {"type": "boolean", "description": "Instead: run it again."},
    },
    "additionalProperties": False,
}
_CREDENTIAL: Schema = {
    "type": "object",
    "properties": {"exchangedAuthCredential": {"type": "object", "description": "ADK's AuthCredential."}},
    "required": ["exchangedAuthCredential"],
}


@dataclass(frozen=True)
class Question:
    """What an open call asks for."""

    call: PendingCall
    kind: Kind
    """`answer`: a tool's result; `input`: what a node of a graph asks a person."""
    message: str
    """For a person."""
    schema: Schema | None
    """Of the answer; `None` where any JSON is taken."""
    about: str | None
    """Id of the tool call that it is about, which may be the open call itself."""
    link: str | None = None
    """Of a credential: where to sign in for it."""

    def read(self, value: Any) -> Any:
        """Return the response that an answer gives.

        Raises:
            ValueError: It is not of the schema; the text says what to give.
        """
        given: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if self.kind == "approval" and "confirmed" in given:
            # ADK's own answer, as its clients give it.
            return given
        problem = problem_of(value, self.schema) if self.schema is not None else None
        if problem is not None:
            raise ValueError(f"the answer to {self.call.id!r} does not fit: {problem}")
        if self.kind == "approval":
            return {"confirmed": given["approved"], **{key: given[key] for key in given if key == "payload"}}
        return cast("Any", value)

    def refusal(self) -> dict[str, Any] | None:
        """Return the response of who gives no answer; `None` where only a stop of the invocation says that."""
        match self.kind:
            case "approval":
                return {"confirmed": False}
            case "answer":
                return {"error": "The user gave no answer."}
            case "credential" | "verdict" | "input":
                return None
            case _:
                assert_never(self.kind)


def question_of(call: PendingCall, plan: Plan | None) -> Question:
    """Return what an open call asks.

    Args:
        call: The call.
        plan: The plan of its invocation, if it is known.
    """
    kind = _KINDS.get(call.name, "answer")
    tool = awaited_tool(call)
    match kind:
        case "approval":
            asked: Any = call.args.get("toolConfirmation")
            hint: Any = cast("dict[str, Any]", asked).get("hint") if isinstance(asked, dict) else None
            return Question(call, kind, str(hint or f"May {tool} run?"), _APPROVAL, _text(asked_about(call.args)))
        case "verdict":
            why = str(call.args.get("reason") or f"What became of the call of {tool}?")
            return Question(call, kind, why, _VERDICT, _text(asked_about(call.args)))
        case "credential":
            about = call.args.get("functionCallId")
            link = sign_in_link(call)
            return Question(call, kind, f"{tool} needs a credential.", _CREDENTIAL, _id(about), link)
        case "input":
            message = str(call.args.get("message") or "An answer is needed.")
            return Question(call, kind, message, answer_schema(call, plan), None)
        case "answer":
            return Question(call, kind, f"{tool} waits for an answer.", answer_schema(call, plan), call.id)
        case _:
            assert_never(kind)


def _text(asked: Mapping[str, Any]) -> str | None:
    return _id(asked.get("id"))


def _id(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
