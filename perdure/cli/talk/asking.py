"""Asks a person for the answer to an open call: yes or no, the fields of its declared type, or a text.

The questions are those of the inbox (`perdure/views/forms`); here each is a line.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import click

from perdure.cli.output import clock
from perdure.cli.talk.screen import Screen, short
from perdure.cli.turns.respond import read_text
from perdure.journal.open_calls import PendingCall
from perdure.plan.nodes import Plan
from perdure.views.forms import answers
from perdure.views.forms.answers import answer_form, read_answer
from perdure.views.forms.declared import answer_schema, example_answer, given_answer
from perdure.views.forms.fields import Field, Form, NotFilledIn

Ask = Callable[[str, str], Awaitable[str]]
"""Reads a line behind a prompt; what stands in it at first comes with it."""

_YES = frozenset({"y", "yes", "approve", "true"})
_NO = frozenset({"n", "no", "reject", "false"})
_LONG = 20
"""Characters of a wrong answer that stands in the line again, to be mended; a shorter one is sooner typed anew."""
_VERDICTS = {"1": "happened", "2": "not happened", "3": "run again"}


class Answer(NamedTuple):
    """What a person answers."""

    response: Any
    why: str | None = None


class Asking:
    """The questions about one call. What was given is kept, so that it may be asked again where it was left off."""

    def __init__(self, call: PendingCall, plan: Plan | None, screen: Screen, flags: str) -> None:
        """Begin to ask.

        Args:
            call: The call.
            plan: The plan of its invocation.
            screen: Where it is asked.
            flags: What names the session on a command line.
        """
        self.call = call
        self._plan = plan
        self._form = answer_form(call, plan)
        self._screen = screen
        self._flags = flags
        self._named_at: int | None = None
        """How many events had been shown when it was shown last."""
        self._found: dict[str, Any] = {}
        """What was given, by what it was asked for; of a field, as its form takes it."""

    @property
    def tool(self) -> str:
        """What the call is about."""
        return self._form.tool

    @property
    def can_be_answered(self) -> bool:
        """Whether it is asked for here: a credential is not, since a secret would be on the screen."""
        return self._form.takes != "credential"

    def name(self) -> None:
        """Show what is asked, if it is not what was shown last."""
        form, call, screen = self._form, self.call, self._screen
        if self._named_at == screen.events:
            return
        screen.gap()
        until = f", until {clock(call.deadline)} UTC" if call.deadline is not None else ""
        screen.line(f"{self._headline()}  ({call.agent}{until})", of="asks")
        if self._named_at is None:
            for name, value in form.args.items():
                screen.line(f"  {name}: {value if isinstance(value, str) else short(value)}", of="quiet")
            if form.hint:
                screen.line(f"  {form.hint}", lines=True)
            if not self.can_be_answered:
                self._tell_how()
        self._named_at = screen.events

    def again(self) -> None:
        """Forget what was given: the session did not take it."""
        self._found = {}

    async def ask(self, read: Ask) -> Answer:
        """Ask, line by line."""
        match self._form.takes:
            case "decision":
                return await self._decision(read)
            case "verdict":
                return await self._verdict(read)
            case "fields" if self._form.form is not None:
                return Answer(await self._fields(read, self._form.form))
            case _:
                return Answer(await self._until(read, "Answer: ", "", self._value))

    def _headline(self) -> str:
        tool = self._form.tool
        return {
            "decision": f"Approve {tool}?",
            "verdict": f"What became of {tool}? It was started, and nobody knows whether it took effect.",
            "credential": f"{tool} needs a credential.",
        }.get(self._form.takes, f"{tool} waits for an answer.")

    def _tell_how(self) -> None:
        """Say how a credential is given elsewhere."""
        if self._form.link:
            self._screen.line(f"  Sign in at {self._form.link}")
        self._screen.line("  Give it in the inbox, or from a file, and this conversation goes on:")
        self._screen.line(f"  perdure respond {self._flags} {shlex.quote(self.call.id)}=@credential.json")
        self._screen.line(f"  credential.json is such as {short(example_answer(self.call))}", of="quiet")

    async def _decision(self, read: Ask) -> Answer:
        def decided(text: str) -> tuple[bool, str]:
            word, _, why = text.strip().partition(" ")
            word = word.strip(",.:;!-").lower()
            if word not in _YES | _NO:
                raise ValueError("Write yes or no; a reason may stand behind it.")
            if len(why) > answers.MAX_WHY:
                raise ValueError(f"A reason has {answers.MAX_WHY} characters at the most.")
            return word in _YES, why.strip(" ,.:;-")

        approve, why = await self._until(read, "yes or no, and why if you like: ", "", decided, key=answers.DECISION)
        values = {answers.DECISION: "approve" if approve else "reject"}
        if approve and self._form.payload is not None:
            label = "What the tool asks for, as JSON: "
            checked = self._checking(values, answers.PAYLOAD)
            return Answer(await self._until(read, label, short(self._form.payload), checked), why or None)
        return Answer(self._read(values), why or None)

    async def _verdict(self, read: Ask) -> Answer:
        def known(text: str) -> str:
            if text.strip() not in _VERDICTS:
                raise ValueError("Write 1, 2 or 3.")
            return _VERDICTS[text.strip()]

        prompt = "It took effect (1), it did not (2), or run it again (3): "
        values = {answers.VERDICT: await self._until(read, prompt, "", known, key=answers.VERDICT)}
        if values[answers.VERDICT] != "happened":
            return Answer(self._read(values))
        prompt = "What it would have returned, as JSON, or nothing: "
        return Answer(await self._until(read, prompt, "", self._checking(values, answers.RESULT)))

    def _checking(self, values: Mapping[str, str], key: str) -> Callable[[str], Any]:
        return lambda text: self._read({**values, key: text})

    def _read(self, values: Mapping[str, str]) -> Any:
        try:
            return read_answer(replace(self._form, values=values))
        except NotFilledIn as error:
            raise ValueError(" ".join(error.errors.values())) from None

    def _value(self, text: str) -> Any:
        try:
            text = read_text(text.strip())
        except click.BadParameter as error:
            raise ValueError(error.message) from None
        if not text.strip():
            raise ValueError("Give an answer: a text, JSON, or @FILE.")
        return given_answer(text, answer_schema(self.call, self._plan))

    async def _fields(self, read: Ask, form: Form) -> Any:
        for one in form.fields:
            await self._field(read, one)
        return self._read({key: found for key, found in self._found.items() if isinstance(found, str)})

    async def _field(self, read: Ask, one: Field, *, above: str = "") -> None:
        if one.kind != "group":
            if one.key not in self._found:
                if one.help:
                    self._screen.line(f"  {one.help}", of="quiet")
                prompt = f"{above}{one.label}{_hint(one)}: "
                await self._until(read, prompt, "", lambda text: self._one(one, text), key=one.key)
            return
        if not one.required and one.key not in self._found:
            prompt = f"{above}{one.label} (yes, or nothing): "
            await self._until(read, prompt, "", lambda text: _chosen(text, {"true": _YES, "": _NO | {""}}), key=one.key)
        if one.required or self._found[one.key]:
            for inner in one.inner:
                await self._field(read, inner, above=f"{above}{one.label}, ")

    def _one(self, one: Field, text: str) -> str:
        """Return what a field's line stands for in a form.

        Raises:
            ValueError: It is no value of the field.
        """
        text = text.strip() or one.default
        if text and one.kind == "boolean":
            text = _chosen(text, {"true": _YES, "false": _NO})
        elif text and one.kind == "choice":
            names = {value: frozenset({value, shown, shown.lower()}) for value, shown in one.choices}
            text = _chosen(text, names)
        try:
            Form((one,), is_object=True).read({one.key: text})
        except NotFilledIn as error:
            raise ValueError(" ".join(error.errors.values())) from None
        return text

    async def _until(
        self, read: Ask, prompt: str, prefill: str, parse: Callable[[str], Any], key: str | None = None
    ) -> Any:
        """Read a line until it can be parsed; what is found under a key is kept, and not asked for again."""
        if key is not None and key in self._found:
            return self._found[key]
        while True:
            text = await read(prompt, prefill)
            try:
                found = parse(text)
            except ValueError as error:
                self._screen.line(f"  {error}", of="bad")
                prefill = text if len(text) >= _LONG else ""
                continue
            if key is not None:
                self._found[key] = found
            return found


def _hint(one: Field) -> str:
    """Return what a field takes, in brackets."""
    takes = {"integer": "a whole number", "number": "a number", "boolean": "yes or no", "json": "JSON"}.get(
        one.kind, ""
    )
    if one.kind == "choice":
        takes = " / ".join(shown for _, shown in one.choices)
    shown = dict(one.choices).get(one.default, one.default)
    default = f"Enter for { ({'true': 'yes', 'false': 'no'}.get(shown, shown)) }" if shown else ""
    if not one.default and (one.nullable or not one.required):
        default = "or nothing"
    found = ", ".join(filter(None, (takes, default)))
    return f" ({found})" if found else ""


def _chosen(text: str, names: Mapping[str, frozenset[str]]) -> str:
    """Return the value one of whose names a text is.

    Raises:
        ValueError: It is none of them.
    """
    for word in (text.strip(), text.strip().lower()):
        found = [value for value, words in names.items() if word in words]
        if len(found) == 1:
            return found[0]
    raise ValueError("Write yes or no." if _YES in names.values() else "Choose one of the values.")
