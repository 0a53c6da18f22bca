"""Builds forms that answer open calls, and answers from forms. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.journal.credential_questions import scheme_of
from perdure.journal.events import (
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    REQUEST_INPUT,
    REQUEST_RECONCILE,
    asked_about,
)
from perdure.journal.open_calls import PendingCall
from perdure.plan.nodes import LlmNode, Plan
from perdure.rules.tool_responses import confirmation_hint
from perdure.views.forms.credential_forms import credential_answer, credential_form, sign_in_link
from perdure.views.forms.declared import answer_schema, read_json
from perdure.views.forms.fields import Form, NotFilledIn, form_of
from perdure.views.forms.schema_check import Schema, problem_of
from perdure.views.pages import awaited_tool

Takes = Literal["decision", "verdict", "credential", "fields", "text", "json"]

WHY, PAYLOAD, RESULT, VALUE, VERDICT, DECISION = "why", "payload", "result", "value", "verdict", "decision"
JSON, AS = "json", "as"
"""Names of the inputs that forms have beside the fields of a schema."""

_MODELS_NOTE = "NOTE: "
"""Begins the note that declarations of long-running tools end with, Perdure's as google.adk's."""

_JSON_BEGINS = ("{", "[", '"')

MAX_WHY = 2000
"""Characters of the comment."""


@dataclass(frozen=True)
class AnswerForm:
    """An open call, and the form that answers it."""

    call: PendingCall
    form_id: str
    """Begins the ids of the form's elements; the same whenever the call is shown."""
    takes: Takes
    tool: str
    """What the call is about: of an approval, the tool that is to run."""
    args: dict[str, Any]
    """The tool's arguments."""
    does: str = ""
    """What the tool does, as its declaration says; empty where that is not known."""
    hint: str = ""
    """The question that an approval asks, or why a call is in doubt."""
    payload: Any = None
    """Of an approval: what the tool asks to be completed."""
    link: str | None = None
    """Of a credential: where to sign in for it."""
    form: Form | None = None
    schema: Schema | None = None
    """The type that is declared of the answer, where one is."""
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """What was filled in before."""
    errors: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def offers_json(self) -> bool:
        """Whether the answer may be given as JSON instead."""
        return self.takes in ("fields", "text")

    def value(self, key: str, default: str = "") -> str:
        """Return the value of an input."""
        return self.values.get(key, default)


def answer_form(
    call: PendingCall,
    plan: Plan | None,
    values: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> AnswerForm:
    """Return the form that answers a call.

    Args:
        call: The call.
        plan: The plan of its invocation, if it is known.
        values: What was filled in before.
        errors: What was wrong with it, by input.
    """
    asked = asked_about(call.args)
    takes: Takes = "json"
    hint, payload, form, args = "", None, None, call.args
    schema: Schema | None = None
    if call.name == REQUEST_CONFIRMATION:
        takes, args = "decision", _mapping(asked.get("args"))
        confirmation = _mapping(call.args.get("toolConfirmation"))
        hint, payload = str(confirmation.get("hint") or ""), confirmation.get("payload")
        if hint == confirmation_hint(awaited_tool(call)):
            # ADK's own words are for programs, and say no more than the form.
            hint = ""
    elif call.name == REQUEST_RECONCILE:
        takes, args, hint = "verdict", _mapping(asked.get("args")), str(call.args.get("reason") or "")
    elif call.name == REQUEST_CREDENTIAL:
        takes, args, form = "credential", {"needs": scheme_of(call.args)}, credential_form(call)
    elif call.name == REQUEST_INPUT:
        hint, args = str(call.args.get("message") or ""), _mapping(call.args.get("payload"))
        schema = answer_schema(call, plan) or {"type": "string"}
        form = form_of(schema)
        takes = "json" if form is None else "fields"
    else:
        schema = answer_schema(call, plan)
        form = form_of(schema)
        takes = "fields" if form is not None else "json" if schema else "text"
    return AnswerForm(
        call=call,
        form_id=f"c{hashlib.sha256(call.id.encode()).hexdigest()[:12]}",
        takes=takes,
        tool=awaited_tool(call),
        args=args,
        does=_description(call, plan),
        hint=hint,
        payload=payload,
        link=sign_in_link(call) if takes == "credential" else None,
        form=form,
        schema=schema,
        values=values or {},
        errors=errors or {},
    )


def _description(call: PendingCall, plan: Plan | None) -> str:
    """Return what the tool that a call is about does, without what only its model is told."""
    node = plan.find(call.agent) if plan is not None else None
    tool = node.tool(awaited_tool(call)) if isinstance(node, LlmNode) else None
    text = (tool.declaration.description or "") if tool is not None else ""
    return "\n\n".join(part for part in text.strip().split("\n\n") if not part.startswith(_MODELS_NOTE))


def read_answer(shown: AnswerForm) -> Any:
    """Return the response that a form was filled in with.

    Raises:
        NotFilledIn: Something is missing or malformed.
    """
    if len(shown.value(WHY)) > MAX_WHY:
        raise NotFilledIn({WHY: f"Give {MAX_WHY} characters at the most."})
    if shown.offers_json and shown.value(AS) == JSON:
        return _checked_json(shown)
    match shown.takes:
        case "decision":
            return _decision(shown)
        case "verdict":
            return _verdict(shown)
        case "credential" if shown.form is not None:
            return credential_answer(shown.call, shown.form.read(shown.values))
        case "text":
            return _text_or_json(shown)
        case "json" | "credential":
            return _json(shown, VALUE)
        case "fields":
            assert shown.form is not None, "a form without fields takes JSON"
            return shown.form.read(shown.values)


def _decision(shown: AnswerForm) -> dict[str, Any]:
    decision = shown.value(DECISION)
    if decision not in ("approve", "reject"):
        raise NotFilledIn({DECISION: "Approve or reject."})
    answer: dict[str, Any] = {"confirmed": decision == "approve"}
    if decision == "approve" and shown.value(PAYLOAD).strip():
        answer["payload"] = _json(shown, PAYLOAD)
    return answer


def _verdict(shown: AnswerForm) -> dict[str, Any]:
    match shown.value(VERDICT):
        case "happened":
            # Without a result the model is told that there was none.
            return {"happened": True, "result": _json(shown, RESULT) if shown.value(RESULT).strip() else None}
        case "not happened":
            return {"happened": False}
        case "run again":
            return {"run_again": True}
        case _:
            raise NotFilledIn({VERDICT: "Say what became of the call."})


def _text_or_json(shown: AnswerForm) -> Any:
    """Return an answer of which nothing is declared: a text, unless it begins as JSON does."""
    text = shown.value(VALUE).replace("\r\n", "\n").strip()
    if not text:
        raise NotFilledIn({VALUE: "Give an answer."})
    if not text.startswith(_JSON_BEGINS):
        return text
    try:
        return read_json(text)
    except ValueError as error:
        raise NotFilledIn({VALUE: f"It begins as JSON does. {error}"}) from None


def _checked_json(shown: AnswerForm) -> Any:
    """Return an answer that was given as JSON, if it is of the declared type."""
    value = _json(shown, JSON)
    problem = problem_of(value, shown.schema) if shown.schema else None
    if problem is not None:
        raise NotFilledIn({JSON: problem})
    return value


def _json(shown: AnswerForm, key: str) -> Any:
    text = shown.value(key)
    if not text.strip():
        raise NotFilledIn({key: 'Give an answer: any JSON, such as {"result": "done"}.'})
    try:
        return read_json(text)
    except ValueError as error:
        raise NotFilledIn({key: str(error)}) from None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] -- JSON
