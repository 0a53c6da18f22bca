"""Log lines name what they are about, hold nothing private above debug level, and are silent on replay."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import subprocess
import sys
import types
from collections.abc import Generator
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from perdure.logs import Level, bound, configure_logging, get_logger, redact_logs, redaction_of_logs
from perdure.logs.failures import fields_of

logger = get_logger("perdure.test_logs")


def configured(level: Level = "info", *, as_json: bool = True) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(json=as_json, level=level, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_names_what_it_is_about() -> None:
    stream = configured()
    with bound(session="s", invocation="e-1", agent="picker", tool="search"):
        logger.info("tool started", attempt=2)
    logger.info("idle")
    first, second = lines(stream)
    assert first["event"] == "tool started"
    assert {key: first[key] for key in ("session", "invocation", "agent", "tool", "attempt")} == {
        "session": "s",
        "invocation": "e-1",
        "agent": "picker",
        "tool": "search",
        "attempt": 2,
    }
    assert (first["level"], first["logger"]) == ("info", "perdure.test_logs")
    assert "session" not in second


@types.coroutine
def forever() -> Generator[None]:
    yield


def test_a_block_that_garbage_collection_ends_takes_no_other_blocks_names() -> None:
    async def waits() -> None:
        with bound(invocation="e-0"):
            await forever()

    left = waits()
    contextvars.copy_context().run(left.send, None)
    stream = configured()
    with bound(invocation="e-1"):
        left.close()
        logger.info("still about it")
    assert [line["invocation"] for line in lines(stream)] == ["e-1"]


_COLLECTED_WHILE_WRITING = """
import contextvars, gc, random, types
from perdure.journal.compact_json import briefly
from perdure.logs import bound

@types.coroutine
def forever():
    yield

async def waits():
    with bound(app="a", session="s", invocation="e-0"):
        await forever()

def leave():
    left = waits()
    contextvars.copy_context().run(left.send, None)
    itself = [left]
    itself.append(itself)

def main():
    for number in range(40):
        contextvars.ContextVar(f"of others {number}").set(object())
    for _ in range(30_000):
        for _ in range(3):
            leave()
        gc.set_threshold(gc.get_count()[0] + random.randrange(1, 14))
        gc.enable()
        with briefly():
            pass
        gc.disable()
        reuses_memory = [object() for _ in range(30)]

gc.disable()
contextvars.copy_context().run(main)
"""


@pytest.mark.process
def test_no_block_that_garbage_collection_ends_crashes_the_worker() -> None:
    # CPython 3.11 collects inside of `ContextVar.set`, and crashes if what is collected sets one, too.
    command = [sys.executable, "-X", "faulthandler", "-c", _COLLECTED_WHILE_WRITING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", ["args", "prompt", "response", "api_key", "content", "state"])
def test_private_values_show_at_debug_level_only(key: str) -> None:
    stream = configured("debug")
    logger.debug("call", **{key: "very private"})
    logger.error("call", **{key: "very private"})
    debug, error = stream.getvalue().splitlines()
    assert "very private" in debug
    assert "very private" not in error


def test_lines_below_the_level_are_not_shown() -> None:
    stream = configured("warning")
    logger.info("no")
    logger.warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_temporals_own_lines_take_the_same_form() -> None:
    stream = configured()
    logging.getLogger("temporalio.activity").info("Completing %s", "it", extra={"attempt": 3})
    logging.getLogger("somebody.else").info("chatter")
    (line,) = lines(stream)
    assert (line["event"], line["attempt"], line["logger"]) == ("Completing it", 3, "temporalio.activity")


def test_a_traceback_is_part_of_the_line() -> None:
    stream = configured()
    try:
        raise OSError("disk gone")
    except OSError:
        logger.exception("failed")
    assert "disk gone" in lines(stream)[0]["exception"]


def fails(key: str) -> None:
    raise ValueError(f"no {key}")


@pytest.fixture
def error() -> Exception:
    """An exception of users' code that quotes something."""
    secret = "hunter" + "2"
    try:
        fails(secret)
    except ValueError as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    ("shown", "level", "quotes"), [(False, "info", False), (True, "info", True), (False, "debug", True)]
)
def test_a_failure_tells_the_frames_of_users_code_and_what_it_says_only_where_that_may_be(
    error: Exception, shown: bool, level: Level, quotes: bool
) -> None:
    """A worker's log is read by many; that of a development server by who wrote the code."""
    stream = io.StringIO()
    configure_logging(json=True, level=level, stream=stream, errors=shown)
    logger.warning("tool failed", **fields_of(error, "perdure.test_logs", f"r-{shown}-{level}"))
    line = lines(stream)[0]
    assert (line["error"], line["where"]) == ("ValueError", f"test_logs.py:{fails.__code__.co_firstlineno + 1}")
    assert 'raise ValueError(f"no {key}")' in line["exception"]
    assert ("hunter2" in stream.getvalue()) is quotes


def test_attempts_that_fail_alike_tell_their_frames_once(error: Exception) -> None:
    stream = configured()
    for reference in ("r-1", "r-1", "r-2"):
        logger.warning("tool failed", **fields_of(error, "perdure.test_logs", reference))
    assert ["exception" in line for line in lines(stream)] == [True, False, True]


def test_a_failure_of_nobodys_code_tells_no_frames_to_a_worker() -> None:
    error = OSError("gone")
    assert fields_of(error, "perdure.test_logs", "r") == {"error": "OSError", "reference": "r", "where": None}


def test_debug_lines_for_people_have_a_line_for_each_message() -> None:
    stream = configured("debug", as_json=False)
    contents = [{"role": "user", "parts": [{"text": "hi\x1b"}]}, {"role": "model", "parts": [{"text": "ho"}]}]
    logger.debug("model is asked", agent="clerk", instruction="Be brief.\nBe kind.", contents=contents)
    first, *rest = stream.getvalue().splitlines()
    assert "agent=clerk" in first
    assert rest == [
        "  instruction: Be brief.",
        "               Be kind.",
        r"""  contents: {"role": "user", "parts": [{"text": "hi\u001b"}]}""",
        """  contents: {"role": "model", "parts": [{"text": "ho"}]}""",
    ]


def test_nothing_of_temporals_is_shown_that_only_its_authors_read() -> None:
    """At debug level its worker prints whole messages of its protocol."""
    stream = configured("debug")
    logging.getLogger("temporalio.worker._workflow").debug("Received workflow activation:\njobs {}")
    logging.getLogger("temporalio.worker._worker").info("ending")
    assert [line["event"] for line in lines(stream)] == ["ending"]


def test_redaction_sees_texts_within_values() -> None:
    stream = configured("debug")
    redact_logs(lambda text: text.replace("4111", "[card]"))
    try:
        logger.debug("tool is called", arguments={"card": "4111", "more": [{"n": "4111"}, 7]})
    finally:
        redaction_of_logs.clear()
    assert lines(stream)[0]["arguments"] == {"card": "[card]", "more": [{"n": "[card]"}, 7]}


def test_text_for_people_has_no_colours_outside_of_a_terminal() -> None:
    stream = configured(as_json=False)
    logger.info("hello", session="s")
    assert "hello" in stream.getvalue()
    assert "session=s" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_the_form_follows_the_stream_if_nothing_is_said() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    logger.info("hello")
    assert lines(stream)[0]["event"] == "hello"


def test_configuring_again_replaces_the_handler() -> None:
    first = configured()
    second = configured()
    logger.info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_keys_that_the_standard_library_keeps_to_itself_are_renamed() -> None:
    stream = configured()
    logger.info("clash", name="n", module="m")
    (line,) = lines(stream)
    assert (line["name_"], line["module_"]) == ("n", "m")


def test_an_application_that_embeds_perdure_keeps_its_own_handlers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="perdure"):
        logger.info("hello", session="s")
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["session"]) == ("hello", "s")


@workflow.defn(name="logs:Logging")
class LoggingWorkflow:
    @workflow.run
    async def run(self) -> None:
        logger.info("in a workflow")


@pytest.mark.server
async def test_a_workflow_logs_once_and_not_on_replay(
    client: Client, app_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    runner = UnsandboxedWorkflowRunner()
    with caplog.at_level("INFO", logger="perdure"):
        async with Worker(client, task_queue=app_name, workflows=[LoggingWorkflow], workflow_runner=runner):
            handle = await client.start_workflow(LoggingWorkflow.run, id=app_name, task_queue=app_name)
            await handle.result()
        replayer = Replayer(workflows=[LoggingWorkflow], workflow_runner=runner, data_converter=client.data_converter)
        await replayer.replay_workflow(await handle.fetch_history())
    assert [record.getMessage() for record in caplog.records].count("in a workflow") == 1
