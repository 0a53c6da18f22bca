"""Rules that play a model.

What is answered is a function of the request alone, so that a process that was killed answers the same.

    RULES = [
        # the user's last text has "refund", and no tool has answered since
        on("refund", call("find_order", order="A-17")),
        # the request ends with the response of find_order
        after("find_order", call("refund_order", order="A-17")),
        after("refund_order", says(lambda seen: f"Refunded {seen.result('refund_order')['amount']}.")),
        # the request ends with what another agent did
        heard("critic", says("Thank you, critic.")),
        otherwise(says("How can I help?")),
    ]

The first rule that fits answers. All rules take conditions by keyword: results=2 (function responses so far), turns=1
(this agent's answers so far), system="regex" (in the instruction), seen="regex" (anywhere in the contents), tool="name"
(is offered), where=function of Seen. Only the standard library is used here: the scripted Gemini server and the
scripted model object share this file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

CONTEXT = "For context:"  # ADK shows what other agents did as the user's text that begins so
NOTES = (
    CONTEXT,
    "The following content is from your previous conversations",
    "Artifact ",
)  # texts in the user's name that are ADK's


class NoRule(LookupError):
    """No rule fits the request: the app's script is incomplete."""


class Failure(RuntimeError):
    """The model's call fails, as the script wants it."""


class Seen:
    """A request, as rules look at it. Contents are JSON as Gemini's REST has it."""

    def __init__(self, contents: list[dict[str, Any]], system: str, tools: list[str], config: dict[str, Any]) -> None:
        self.contents = contents
        self.system = system
        self.tools = tools
        self.config = config

    @property
    def last(self) -> list[dict[str, Any]]:
        """What the request ends with, less memories and artifacts that ADK puts behind it."""
        for content in reversed(self.contents):
            parts = content.get("parts") or []
            if not texts(parts).startswith(NOTES[1:]):
                return parts
        return []

    @property
    def answered(self) -> list[str]:
        """The names of the function responses that the request ends with."""
        return [part["functionResponse"]["name"] for part in self.last if "functionResponse" in part]

    @property
    def context(self) -> str | None:
        """What the request ends with, if another agent did it."""
        text = texts(self.last)
        return text if text.startswith(CONTEXT) else None

    @property
    def user(self) -> str:
        """The last text of the user; what other agents did, memories and artifacts are passed over."""
        for content in reversed(self.contents):
            text = texts(content.get("parts") or [])
            if content.get("role") == "user" and text and not text.startswith(NOTES):
                return text
        return ""

    @property
    def responses(self) -> list[dict[str, Any]]:
        parts = [part for content in self.contents for part in content.get("parts") or []]
        return [part["functionResponse"] for part in parts if "functionResponse" in part]

    @property
    def turns(self) -> int:
        return sum(content.get("role") == "model" for content in self.contents)

    def result(self, name: str) -> dict[str, Any]:
        """The last response of a function."""
        found = [response["response"] for response in self.responses if response["name"] == name]
        return found[-1] if found else {}

    def everything(self) -> str:
        return json.dumps(self.contents, ensure_ascii=False, sort_keys=True)


def texts(parts: list[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))


Part = dict[str, Any]
Maker = Callable[[Seen], Part]


def given(value: Any, seen: Seen) -> Any:
    """A value of a script: functions are asked with the request."""
    if callable(value):
        return value(seen)
    if isinstance(value, dict):
        return {key: given(item, seen) for key, item in value.items()}
    return [given(item, seen) for item in value] if isinstance(value, list) else value


def says(text: str | Callable[[Seen], str]) -> Maker:
    return lambda seen: {"text": given(text, seen)}


def thinks(text: str) -> Maker:
    return lambda seen: {"text": text, "thought": True}


def data(value: Any) -> Maker:
    """Text that is JSON, for an output schema."""
    return lambda seen: {"text": json.dumps(given(value, seen))}


def call(function: str, **args: Any) -> Maker:
    return lambda seen: {"functionCall": {"name": function, "args": given(args, seen)}}


def blob(mime: str, content: bytes) -> Maker:
    return lambda seen: {"inlineData": {"mimeType": mime, "data": base64.b64encode(content).decode()}}


def ran_code(code: str, output: str) -> Maker:
    """Code that Gemini ran on its own side, with what came out."""
    made = [
        {"executableCode": {"language": "PYTHON", "code": code}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": output}},
    ]
    return lambda seen: {"several": made}


def usage(prompt: int, answer: int) -> Maker:
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": answer, "totalTokenCount": prompt + answer}
    return lambda seen: {"usage": counts}


def grounding(query: str, url: str) -> Maker:
    """Gemini's account of its own web search."""
    chunk = {"web": {"uri": url, "title": url.split("/")[2]}}
    return lambda seen: {"grounding": {"webSearchQueries": [query], "groundingChunks": [chunk]}}


def finish(reason: str) -> Maker:
    return lambda seen: {"finish": reason}


def error(code: str, message: str) -> Maker:
    """An answer that is an error, as a model gives for a blocked prompt."""
    return lambda seen: {"error": {"code": code, "message": message}}


def fails(message: str, status: int = 500) -> Maker:
    """The call of the model raises."""
    return lambda seen: {"fails": {"message": message, "status": status}}


class Rule:
    def __init__(self, fits: Callable[[Seen], bool], parts: tuple[Maker, ...], conditions: dict[str, Any]) -> None:
        self.fits = fits
        self.parts = parts
        self.conditions = conditions

    def answers(self, seen: Seen) -> bool:
        return self.fits(seen) and all(holds(name, value, seen) for name, value in self.conditions.items())


def holds(name: str, value: Any, seen: Seen) -> bool:
    if name == "results":
        return len(seen.responses) == value
    if name == "turns":
        return seen.turns == value
    if name == "system":
        return bool(re.search(value, seen.system))
    if name == "seen":
        return bool(re.search(value, seen.everything()))
    if name == "tool":
        return value in seen.tools
    if name == "where":
        return bool(value(seen))
    raise TypeError(f"a rule has no condition {name!r}")


def on(pattern: str, *parts: Maker, **conditions: Any) -> Rule:
    return Rule(lambda seen: not seen.answered and bool(re.search(pattern, seen.user)), parts, conditions)


def after(names: str, *parts: Maker, **conditions: Any) -> Rule:
    wanted = set(names.split("+"))
    return Rule(lambda seen: wanted <= set(seen.answered), parts, conditions)


def heard(pattern: str, *parts: Maker, **conditions: Any) -> Rule:
    return Rule(lambda seen: seen.context is not None and bool(re.search(pattern, seen.context)), parts, conditions)


def otherwise(*parts: Maker, **conditions: Any) -> Rule:
    return Rule(lambda seen: True, parts, conditions)


def answer(agent: str, rules: list[Rule], seen: Seen) -> dict[str, Any]:
    """What the model answers: parts, usage, finish, error or fails."""
    for rule in rules:
        if rule.answers(seen):
            break
    else:
        raise NoRule(f"{agent}: no rule for a request that ends with {json.dumps(seen.last, ensure_ascii=False)[:300]}")
    found: dict[str, Any] = {"parts": []}
    for made in (given(part, seen) for part in rule.parts):
        special = next((name for name in ("usage", "finish", "error", "fails", "grounding") if name in made), None)
        if special:
            found[special] = made[special]
        elif "several" in made:
            found["parts"] += made["several"]
        else:
            found["parts"].append(made)
    return found


def chunks(text: str) -> list[str]:
    """A text in the pieces in which it is streamed: two words each."""
    words = re.findall(r"\S+\s*", text)
    return ["".join(words[at : at + 2]) for at in range(0, len(words), 2)] or [text]
