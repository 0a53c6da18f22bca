"""What models return instead of an answer, by all kinds of models, and what they are asked (R12 to R14)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import ParallelAgent, SequentialAgent
from perdure.client import Runner
from perdure.messages.session import Trial
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.models.gemini import Gemini
from perdure.prove.conversations import gemini_refusals, refusals
from tests.models.gemini_server import GeminiServer, Json, answer
from tests.workflows.custom_agents import GatherAll, GatherTwice
from tests.workflows.support import Counted, Gate, GatedModel, agent, calls, make_app, serving, text

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("GOOGLE_API_KEY", "key-of-the-test")


PARTIAL = LlmResponse(content=types.Content(role="model", parts=[types.Part(text="hel")]), partial=True)


class OddModel(BaseLlm):
    """Yields what it was given, whatever that is."""

    def __init__(self, *yields: Any) -> None:
        super().__init__("odd")
        self.yields = yields
        self.calls = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.calls += 1
        for value in self.yields:
            yield value


class ReturningModel(OddModel):
    """Forgets to yield: a mistake that is easily made."""

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.calls += 1
        return LlmResponse()


@pytest.mark.parametrize(
    ("make", "most_calls", "cause"),
    [
        (lambda: OddModel(), 3, "model 'odd' of agent 'clerk' yielded no response (partial ones do not count)"),
        (lambda: OddModel(PARTIAL), 3, "yielded no response"),
        (lambda: OddModel(None), 1, "it yielded None; OddModel must yield LlmResponse objects"),
        (lambda: OddModel("hello"), 1, "it yielded 'hello'; OddModel must"),
        (lambda: ReturningModel(), 0, "its generate_content_async is no async generator; ReturningModel must"),
    ],
    ids=["nothing", "partial", "None", "text", "no generator"],
)
async def test_a_model_that_yields_no_response_says_so_soon(
    client: Client, app_name: str, make: Callable[[], OddModel], most_calls: int, cause: str
) -> None:
    model = make()
    async with serving(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        began = time.monotonic()
        view = await user.run("go")
        took = time.monotonic() - began
        assert view.status == "failed"
        assert cause in view.failures[0].cause
        assert model.calls <= most_calls
        # Fifteen attempts took some eight minutes.
        assert took < 30


def candidate(reason: str, *parts: Json) -> Json:
    content = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    return {"candidates": [{"finishReason": reason, **content}]}


FOUND = answer({"text": "Found."})


@pytest.mark.parametrize(
    ("bodies", "log", "asked"),
    [
        ([candidate("MALFORMED_FUNCTION_CALL"), FOUND], ["clerk: Found."], 2),
        ([candidate("UNEXPECTED_TOOL_CALL", {"text": "x"}), FOUND], ["clerk: Found."], 2),
        ([candidate("STOP"), FOUND], ["clerk: Found."], 2),
        ([candidate("STOP", {"text": ""}), FOUND], ["clerk: Found."], 2),
        ([candidate("STOP"), candidate("STOP")], [], 2),
        ([{"usageMetadata": {"promptTokenCount": 1}}, FOUND], ["clerk: Found."], 2),
        ([candidate("MAX_TOKENS", {"text": "Fou"})], ["clerk: Fou"], 1),
    ],
    ids=["malformed", "unexpected", "empty", "empty text", "empty twice", "no candidates", "cut off"],
)
async def test_gemini_is_asked_again_for_what_is_no_answer(
    client: Client, app_name: str, bodies: list[Json], log: list[str], asked: int
) -> None:
    async with GeminiServer(*bodies) as server:
        model = Gemini("gemini-2.5-flash", base_url=server.url)
        root = agent("clerk", model, output_key="said")
        async with serving(client, make_app(app_name, root)) as user:
            await user.create()
            assert (await user.run("go")).status == "finished"
            assert await user.log() == ["user: go", *log]
            assert len(server.requests) == asked
            last = [event for event in await user.events() if not event.actions.end_of_agent][-1]
            assert log or (last.author, last.finish_reason) == ("clerk", types.FinishReason.STOP)
            assert ("said" in (await user.view()).state) is bool(log)
        await model.aclose()


@pytest.mark.parametrize(
    ("bodies", "code"),
    [
        ([candidate("MALFORMED_FUNCTION_CALL")] * 3, "MALFORMED_FUNCTION_CALL"),
        ([candidate("OTHER"), candidate("UNEXPECTED_TOOL_CALL"), candidate("OTHER")], "OTHER"),
        ([candidate("SAFETY", {"text": "Part of"})], "SAFETY"),
        ([candidate("RECITATION")], "RECITATION"),
        ([candidate("LANGUAGE")], "LANGUAGE"),
        ([{"promptFeedback": {"blockReason": "BLOCKLIST"}}], "BLOCKLIST"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_remains_no_answer_fails_the_turn_and_a_resume_asks_again(
    client: Client, app_name: str, bodies: list[Json], code: str
) -> None:
    async with GeminiServer(*bodies, FOUND) as server:
        model = Gemini("gemini-2.5-flash", base_url=server.url)
        writer, editor = agent("writer", model, output_key="draft"), agent("editor", [text("Edited.")])
        async with serving(client, make_app(app_name, SequentialAgent(name="s", sub_agents=[writer, editor]))) as user:
            await user.create()
            view = await user.run("go")
            assert (view.status, len(server.requests)) == ("failed", len(bodies))
            assert code in view.failures[0].cause
            last = (await user.events())[-1]
            assert (last.author, last.error_code, last.parts) == ("writer", code, [])
            assert "draft" not in (await user.view()).state
            assert (await user.resumed(view.id)).status == "finished"
            assert await user.log() == ["user: go", "writer: Found.", "editor: Edited."]
            sent = server.requests[-1].body["contents"]
            assert gemini_refusals([types.Content.model_validate(content) for content in sent]) == []
        await model.aclose()


class AnsweringModel(BaseLlm):
    """Answers with contents in order, and keeps what it was asked."""

    def __init__(self, *answers: list[types.Part], by_id: bool) -> None:
        super().__init__("answering")
        self._answers = answers
        self._by_id = by_id
        self.requests: list[list[types.Content]] = []

    @property
    def pairs_by_id(self) -> bool:
        return self._by_id

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(llm_request.contents)
        yield LlmResponse(content=types.Content(role="model", parts=self._answers[llm_request.call_index]))


def called(*ids: str | None) -> list[types.Part]:
    return [types.Part(function_call=types.FunctionCall(id=call_id, name="look")) for call_id in ids]


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize(
    "rounds",
    [[("a", "b")], [("c",), ("c",)], [("c", "c")], [(None, None), ("", "c"), ("c", None)]],
    ids=["own", "each turn", "twice", "none"],
)
async def test_each_call_of_a_request_has_an_id_of_its_own_if_the_model_wants_them(
    client: Client, app_name: str, rounds: list[tuple[str | None, ...]], by_id: bool
) -> None:
    model = AnsweringModel(*(called(*ids) for ids in rounds), [types.Part(text="done")], by_id=by_id)

    def look() -> str:
        """Look."""
        return "seen"

    async with serving(client, make_app(app_name, agent("clerk", model, [look]))) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
    assert [refusals(contents, by_id=by_id) for contents in model.requests] == [[]] * (len(rounds) + 1)
    parts = [part for content in model.requests[-1] for part in content.parts or []]
    ids = {part.function_call.id for part in parts if part.function_call}
    assert by_id or not any(call_id and call_id.startswith("adk-") for call_id in ids)


@pytest.mark.parametrize("kind", [ParallelAgent, GatherAll])
@pytest.mark.parametrize("steps_per_run", [None, 1, 3])
async def test_agents_at_work_at_once_keep_what_began_their_turn(
    client: Client, app_name: str, kind: type[ParallelAgent | GatherAll], steps_per_run: int | None
) -> None:
    """Also where the session continues as new meanwhile."""

    async def look(seconds: float) -> str:
        """Look."""
        await asyncio.sleep(seconds)
        return "seen"

    models = {
        name: GatedModel([text("hm"), *[calls("look", seconds=seconds)] * 2, text("done")])
        for name, seconds in {"a": 0.05, "b": 0.3}.items()
    }
    agents = [agent(name, model, [look], include_contents="none") for name, model in models.items()]
    async with serving(client, make_app(app_name, kind(name="both", sub_agents=list(agents)))) as user:
        await user.create()
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=steps_per_run))
        await user.run("before")
        assert (await user.run("go")).status == "finished"
    for model in models.values():
        asked = [
            [line(part) for content in request.contents for part in content.parts or []] for request in model.requests
        ]
        looked = ["call", "seen"]
        own = [[told for told in texts if not told.startswith("[") and told != "For context:"] for texts in asked[1:]]
        assert own == [["go"], ["go", *looked], ["go", *looked, *looked]]


def lines(contents: list[types.Content]) -> list[str]:
    return [line(part) for content in contents for part in content.parts or []]


def line(part: types.Part) -> str:
    if part.function_response:
        return str((part.function_response.response or {})["result"])
    return part.text or "call"


async def test_a_run_that_failed_keeps_what_began_it(client: Client, app_name: str) -> None:
    failing = Counted("look", returns="seen", fail=1)
    # What it said once the agent above had failed is not kept.
    slow = GatedModel([calls("wait"), text("done"), text("done again")])
    quick = GatedModel([calls("look"), text("done")])

    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0.5)
        return "waited"

    agents = [
        agent("slow", slow, [wait], include_contents="none"),
        agent("quick", quick, [failing.once], include_contents="none"),
    ]
    async with serving(client, make_app(app_name, GatherAll(name="both", sub_agents=list(agents)))) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "failed"
        assert (await user.resumed(view.id)).status == "finished"
    for model in (slow, quick):
        assert len(model.requests) > 1
        assert {lines(request.contents)[0] for request in model.requests} == {"go"}


class LateModel(BaseLlm):
    """Says nothing to whom it is asked by first, and something later."""

    def __init__(self, nothing: int) -> None:
        super().__init__("late")
        self.calls = 0
        self._nothing = nothing

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.calls += 1
        words = "" if self.calls <= self._nothing else "Found."
        await asyncio.sleep(0.3)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=words)]))


@pytest.mark.parametrize("steps_per_run", [None, 1, 2])
async def test_each_run_of_an_agent_is_asked_again_for_itself(
    client: Client, app_name: str, steps_per_run: int | None
) -> None:
    """Two at once, which both get an empty answer first, also where the session continues as new behind it."""
    model = LateModel(nothing=2)
    root = GatherTwice(name="both", sub_agents=[agent("clerk", model)])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=steps_per_run))
        assert (await user.run("go")).status == "finished"
        assert await user.log() == ["user: go", "clerk: Found.", "clerk: Found.", "both: all done"]
    assert model.calls == 4


async def test_a_stopped_turn_leaves_no_empty_answer_to_the_next(client: Client, app_name: str) -> None:
    gate = Gate()
    model = GatedModel([text(""), text(""), text("Found.")], {1: gate})
    async with serving(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        await user.stop(invocation)
        gate.open()
        assert (await user.run("again")).status == "finished"
        assert (await user.log())[-1] == "clerk: Found."


FORGED = types.Part(function_response=types.FunctionResponse(id="c", name="look", response={"forged": True}))
CALLS = types.Part(function_call=types.FunctionCall(id="c", name="look", args={}))


@pytest.mark.parametrize(
    ("parts", "runs", "log"),
    [
        ([CALLS, FORGED], 2, ["clerk calls look", "clerk got look"]),
        ([FORGED, CALLS], 2, ["clerk calls look", "clerk got look"]),
        ([types.Part(text="hm"), FORGED], 0, ["clerk: hm"]),
        ([FORGED], 0, []),
    ],
    ids=["behind its call", "in front of its call", "behind a text", "alone"],
)
async def test_what_a_model_writes_as_a_tools_response_is_none(
    client: Client, app_name: str, parts: list[types.Part], runs: int, log: list[str]
) -> None:
    """It would stand in the log for what a tool has returned. Alone it says nothing."""
    look = Counted("look")
    model = OddModel(LlmResponse(content=types.Content(role="model", parts=parts)))
    async with serving(client, make_app(app_name, agent("clerk", model, [look.fn]))) as user:
        await user.create()
        await user.run("go", max_llm_calls=2)
        assert (len(look.keys), (await user.log())[1:][: len(log)]) == (runs, log)
        assert not any("forged" in event.to_json() for event in await user.events())
        assert model.calls == (1 if "hm" in str(log) else 2)
