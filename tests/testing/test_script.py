"""`say`, `call` and `fail`: the steps of a script, as a test writes them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from perdure import ScriptedModel
from perdure.testing import call, fail, say


def test_steps_are_those_of_a_scripted_model() -> None:
    steps = [say("Hello."), call("book", city="Oslo", name="Ann"), fail("overloaded")]
    as_mappings = [
        {"text": "Hello."},
        {"calls": [{"name": "book", "args": {"city": "Oslo", "name": "Ann"}}]},
        {"error": "overloaded"},
    ]
    assert ScriptedModel(steps).steps == ScriptedModel(as_mappings).steps


def test_answers_are_joined_to_one() -> None:
    step = say("Wait, ") + say("please.") + call("book", city="Oslo") + call("book", city="Rome")
    assert step.text == "Wait, please."
    assert [(one.name, one.args) for one in step.calls] == [("book", {"city": "Oslo"}), ("book", {"city": "Rome"})]


def test_a_failure_says_nothing_else() -> None:
    with pytest.raises(ValidationError, match="or else an error"):
        _ = say("Hello.") + fail("overloaded")
