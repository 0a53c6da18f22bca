"""What the log of a worker says as an attempt of a step fails."""

from __future__ import annotations

import dataclasses
import io
import json

from temporalio import activity
from temporalio.testing import ActivityEnvironment

from perdure.activities.attempts import telling
from perdure.logs import configure_logging


def fail() -> None:
    raise LookupError("no order 17")


def attempt(number: int) -> None:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=number)

    def step() -> None:
        with telling("tool", activity.info().attempt):
            fail()

    try:
        environment.run(step)
    except LookupError:
        return
    raise AssertionError


def test_at_debug_level_the_authors_frames_stand_first_and_all_frames_are_told_once() -> None:
    """A step is tried three times or more, and its frames are thirty lines."""
    stream = io.StringIO()
    configure_logging(json=True, level="debug", stream=stream)
    for number in (1, 2, 3):
        attempt(number)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [(line["level"], line.get("exception", "none").partition("\n")[0]) for line in lines]
    assert told == [
        ("warning", "LookupError: no order 17"),
        ("debug", "Traceback (most recent call last):"),
        ("warning", "none"),
        ("warning", "none"),
    ]
