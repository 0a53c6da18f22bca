"""`output_schema`: an agent is asked for JSON, the user's type checks its answer, and the state has the value."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel, Field, field_validator
from temporalio.client import Client

from perdure.agents import LlmAgent, SequentialAgent
from perdure.client import Runner
from perdure.messages.session import Trial
from tests.workflows.support import (
    Counted,
    GatedModel,
    User,
    agent,
    calls,
    make_app,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server

ADA = '{"name": "Ada", "age": 36}'


class Person(BaseModel):
    """Somebody."""

    name: str = Field(description="Both names.")
    age: int
    nick: str | None = None

    @field_validator("age")
    @classmethod
    def _no_child(cls, age: int) -> int:
        if age < 0:
            raise ValueError("nobody is that young")
        return age


class Both(GatedModel):
    """A model that takes a schema for its answer beside tools."""

    @property
    def output_schema_and_tools(self) -> bool:
        return True


def config_of(model: GatedModel, call: int = 0) -> dict[str, Any]:
    return model.requests[call].config.model_dump(mode="json", exclude_none=True)


def declared(model: GatedModel) -> list[str]:
    found = config_of(model).get("tools", [])
    return [one["name"] for tool in found for one in tool["function_declarations"]]


async def state_of(client: Client, name: str, root: LlmAgent | SequentialAgent) -> dict[str, Any]:
    async with serving(client, make_app(name, root)) as user:
        await user.create()
        assert (await user.run("who?")).status == "finished"
        return dict((await user.view()).state)


async def test_the_state_has_the_value(client: Client, app_name: str) -> None:
    """Without what has no value, as in ADK; the event keeps the text, and a fence around it does no harm."""
    model = GatedModel([text(f"```json\n{ADA}\n```")])
    clerk = agent("clerk", model, output_schema=Person, output_key="person")
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("who?")).status == "finished"
        event = (await user.events())[1]
        assert event.text == f"```json\n{ADA}\n```"
        assert event.actions.state_delta == {"person": {"name": "Ada", "age": 36}}
        assert (await user.view()).state == {"person": {"name": "Ada", "age": 36}}
    config = config_of(model)
    assert config["response_mime_type"] == "application/json"
    schema = config["response_json_schema"]
    assert (schema["required"], schema["properties"]["name"]["description"]) == (["name", "age"], "Both names.")


@pytest.mark.parametrize(
    ("schema", "said", "value"),
    [
        (list[Person], f"[{ADA}]", [{"name": "Ada", "age": 36}]),
        (list[str], '["a"]', ["a"]),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"a": 1}', {"a": 1}),
        (types.Schema(type=types.Type.ARRAY, items=types.Schema(type=types.Type.STRING)), '["a"]', ["a"]),
    ],
)
async def test_a_schema_may_be_of_any_type(client: Client, app_name: str, schema: Any, said: str, value: Any) -> None:
    """By a raw schema nothing is checked, as in ADK."""
    clerk = agent("clerk", [text(said)], output_schema=schema, output_key="found")
    assert await state_of(client, app_name, clerk) == {"found": value}


@pytest.mark.parametrize(
    "wrong", ["Ada, 36", '{"name": "Ada", "age": "old"}', '{"name": "Ada", "age": -1}', '{"name": "Ada", "age": 3']
)
async def test_an_answer_that_does_not_fit_is_asked_for_again(client: Client, app_name: str, wrong: str) -> None:
    model = GatedModel([text(wrong), text(wrong), text(ADA)])
    clerk = agent("clerk", model, output_schema=Person, output_key="person")
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("who?")).status == "finished"
        assert await user.log() == ["user: who?", f"clerk: {ADA}"]
        assert (await user.view()).state == {"person": {"name": "Ada", "age": 36}}
    assert len(model.requests) == 3


@pytest.mark.parametrize("resumable", [True, False])
async def test_three_times_fail_the_turn_and_not_the_session(client: Client, app_name: str, resumable: bool) -> None:
    """The failure says what does not fit; nothing of it is in the state, and the next message, or a resume, goes on."""
    model = GatedModel([text('{"name": "Ada"}')] * 3 + [text(ADA), text(ADA)])
    clerk = agent("clerk", model, output_schema=Person, output_key="person")
    async with serving(client, make_app(app_name, clerk, resumable=resumable)) as user:
        await user.create()
        failed = await user.run("who?")
        assert failed.status == "failed"
        (failure,) = failed.failures
        assert (failure.agent, failure.step) == ("clerk", "model")
        assert "no answer but INVALID_OUTPUT (its answer does not fit its output_schema: age: Field required)" in (
            failure.cause
        )
        event = (await user.events())[-1]
        assert (event.error_code, event.parts, event.actions.state_delta) == ("INVALID_OUTPUT", [], {})
        done = await (user.resumed(failed.id) if resumable else user.run("again"))
        assert done.status == "finished"
        assert (await user.view()).state == {"person": {"name": "Ada", "age": 36}}


TRIALS = [None, Trial(reenter=True), Trial(steps_per_run=1, reenter=True)]


@pytest.mark.parametrize("trial", TRIALS)
async def test_beside_tools_it_answers_by_a_call(client: Client, app_name: str, trial: Trial | None) -> None:
    """A call that does not fit is the model's to mend; behind one that fits stands the answer, and the turn ends."""
    look = Counted("look")
    model = GatedModel(
        [
            calls("look"),
            calls("set_model_response", name="Ada"),
            calls("set_model_response", name="Ada", age=36),
            text("never"),
        ]
    )
    clerk = agent("clerk", model, [look.fn], output_schema=Person, output_key="person")
    async with serving(client, make_app(app_name, clerk)):
        user = User(client, app_name)
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        assert (await user.run("who?")).status == "finished"
        assert (await user.log())[-3:] == [
            "clerk calls set_model_response",
            "clerk got set_model_response",
            f"clerk: {ADA}",
        ]
        wrong, right = responses(await user.events(), "set_model_response")
        assert wrong["error"].startswith("Your answer does not fit: age: Field required")
        assert right == {"name": "Ada", "age": 36}
        assert (await user.view()).state == {"person": {"name": "Ada", "age": 36}}
    assert (len(look.keys), len(model.requests)) == (1, 3)
    assert declared(model) == ["look", "set_model_response"]
    assert "response_json_schema" not in config_of(model)
    assert "set_model_response" in config_of(model)["system_instruction"]


async def test_other_answers_are_wrapped_in_an_argument(client: Client, app_name: str) -> None:
    look = Counted("look")
    model = GatedModel([calls("set_model_response", items=[{"name": "Ada", "age": 36}])])
    clerk = agent("clerk", model, [look.fn], output_schema=list[Person], output_key="people")
    assert await state_of(client, app_name, clerk) == {"people": [{"name": "Ada", "age": 36}]}


async def test_a_model_that_takes_both_is_given_both(client: Client, app_name: str) -> None:
    model = Both([calls("look"), text(ADA)])
    clerk = agent("clerk", model, [Counted("look").fn], output_schema=Person, output_key="person")
    assert await state_of(client, app_name, clerk) == {"person": {"name": "Ada", "age": 36}}
    assert declared(model) == ["look"]
    assert config_of(model)["response_json_schema"]["required"] == ["name", "age"]


async def test_who_may_hand_over_has_a_tool_too(client: Client, app_name: str) -> None:
    """The models that take no schema beside tools take none beside a transfer."""
    model = GatedModel([calls("set_model_response", name="Ada", age=36)])
    clerk = agent("clerk", model, output_schema=Person, output_key="person", sub_agents=[agent("other", [text("a")])])
    assert await state_of(client, app_name, clerk) == {"person": {"name": "Ada", "age": 36}}
    assert declared(model) == ["transfer_to_agent", "set_model_response"]


async def test_the_next_agent_reads_the_value(client: Client, app_name: str) -> None:
    reader = GatedModel([text("done")])
    first = agent("first", [text(ADA)], output_schema=Person, output_key="person")
    root = SequentialAgent(name="both", sub_agents=[first, agent("second", reader, instruction="Greet {person}.")])
    await state_of(client, app_name, root)
    assert "Greet {'name': 'Ada', 'age': 36}." in config_of(reader)["system_instruction"]
