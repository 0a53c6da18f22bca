"""The small types of contents: what a process that only shows sessions reads, and sends, is google-genai's JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from perdure.journal.events import Event
from perdure.plan import light_contents

SAMPLES = sorted((Path(__file__).parents[1] / "data" / "events").glob("*.json"))

SHOW = """
import json, sys
from perdure.plan.only_shown import only_show
only_show()
from perdure.journal.events import Event
for line in sys.stdin:
    event = Event.model_validate_json(line)
    calls = [[call.id, call.name, call.args] for call in event.get_function_calls()]
    responses = [[response.id, response.name, response.response] for response in event.get_function_responses()]
    print(json.dumps([json.loads(event.to_json()), event.text, calls, responses, event.is_final_response()]))
assert "google.genai" not in sys.modules
"""


def seen(event: Event) -> list[Any]:
    """Return what `SHOW` prints of an event."""
    return [
        json.loads(event.to_json()),
        event.text,
        [[call.id, call.name, call.args] for call in event.get_function_calls()],
        [[response.id, response.name, response.response] for response in event.get_function_responses()],
        event.is_final_response(),
    ]


def in_light(*lines: str) -> list[Any]:
    """Return what a process that only shows sessions sees of events."""
    done = subprocess.run([sys.executable, "-c", SHOW], input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_process_that_only_shows_sees_events_as_all_others_do() -> None:
    events = [
        Event.model_validate_json(json.dumps(sample["event"]))
        for path in SAMPLES
        for sample in json.loads(path.read_text())
    ]
    events.append(Event.model_validate({"finish_reason": "SAFETY", "error_code": "SAFETY"}))
    assert len(events) > 20
    assert in_light(*(event.to_json() for event in events)) == [seen(event) for event in events]


@pytest.mark.parametrize("name", [name for name in vars(light_contents) if name[0].isupper()])
def test_what_is_known_of_a_type_is_a_field_of_google_genai_s(name: str) -> None:
    small, large = getattr(light_contents, name), getattr(types, name, None)
    if name in ("Any", "BaseModel", "ConfigDict", "StrEnum"):
        return
    assert large is not None
    if issubclass(small, BaseModel):
        assert small.model_fields.keys() <= large.model_fields.keys()
    else:
        assert {reason.value for reason in small} <= {reason.value for reason in large}
