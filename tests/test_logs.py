"""Log lines name what they are about, hold nothing private above debug level, and are silent on replay."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from perdure.logs import Level, bound, configure_logging, get_logger

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
