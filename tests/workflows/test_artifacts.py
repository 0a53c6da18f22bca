"""Artifacts of tools: saved outside of Temporal, named in the response's event, once for each call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import App, FunctionTool, ReadonlyContext, ToolContext, load_artifacts
from perdure.artifacts import ArtifactVersion, FileArtifactService
from perdure.journal.events import Event
from tests.workflows.support import ONCE, GatedModel, User, agent, calls, make_app, responses, serving, text

pytestmark = pytest.mark.server

SECRET = "7f3a-content-of-the-artifact"
QUICK = RetryPolicy(maximum_attempts=3, initial_interval=RetryPolicy().initial_interval / 100)


class Kept:
    """The artifacts of the session that the tests run."""

    def __init__(self, folder: Path, app: str) -> None:
        self.service = FileArtifactService(folder)
        self.who: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}

    async def texts(self, filename: str) -> list[str | None]:
        versions = await self.service.list_versions(**self.who, filename=filename)
        parts = [await self.service.load_artifact(**self.who, filename=filename, version=n) for n in versions]
        return [part.text if part else None for part in parts]


@asynccontextmanager
async def running(client: Client, app: App, kept: Kept | None, **options: Any) -> AsyncGenerator[User]:
    """Serve an app, with a place for artifacts or without, and create its session."""
    async with serving(client, app, artifacts=kept.service if kept else None, **options) as user:
        await user.create()
        yield user


@pytest.fixture
def kept(tmp_path: Path, app_name: str) -> Kept:
    return Kept(tmp_path, app_name)


async def write(name: str, words: str, tool_context: ToolContext) -> int:
    """Write an artifact."""
    return await tool_context.save_artifact(name, types.Part(text=words), {"by": tool_context.agent_name})


def write_plainly(name: str, words: str, tool_context: ToolContext) -> dict[str, Any]:
    """Write an artifact, and look at all of them."""
    before = tool_context.wait_for(tool_context.load_artifact(name))
    version = tool_context.wait_for(tool_context.save_artifact(name, types.Part(text=words)))
    found = tool_context.wait_for(tool_context.get_artifact_version(name, version))
    assert isinstance(found, ArtifactVersion)
    return {
        "before": before.text if before else None,
        "version": version,
        "type": found.mime_type,
        "names": tool_context.wait_for(tool_context.list_artifacts()),
    }


def deltas(events: list[Event]) -> list[dict[str, int]]:
    return [event.actions.artifact_delta for event in events if event.actions.artifact_delta]


async def test_the_response_names_what_a_tool_saved_and_no_history_holds_it(
    client: Client, app_name: str, kept: Kept
) -> None:
    script = [calls("write", name="a.txt", words="first"), text("done"), calls("save"), text("done")]

    async def save(tool_context: ToolContext) -> str:
        """Save something large that no message holds."""
        await tool_context.save_artifact("a.txt", types.Part(text=SECRET * 100_000))
        await tool_context.save_artifact("user:b.txt", types.Part(text=SECRET))
        return "saved"

    app = make_app(app_name, agent("clerk", script, [write, save]))
    async with running(client, app, kept, cached=0) as user:
        assert (await user.run("go")).status == "finished"
        assert (await user.run("go")).status == "finished"
        events = await user.events()
        assert deltas(events) == [{"a.txt": 0}, {"a.txt": 1, "user:b.txt": 0}]
        assert responses(events, "write") == [{"result": 0}]
        saving = next(event for event in events if event.actions.artifact_delta)
        assert saving.author == "clerk"
        assert saving.get_function_responses()
        # 2.8 MB are more than Temporal would take.
        history = await user.workflow.fetch_history()
        assert SECRET not in history.to_json()
        assert (await user.view()).state == {}
    assert await kept.texts("a.txt") == ["first", SECRET * 100_000]
    found = await kept.service.get_artifact_version(**kept.who, filename="a.txt", version=0)
    assert found is not None
    assert found.custom_metadata == {"by": "clerk"}


async def test_calls_of_one_answer_are_one_delta(client: Client, app_name: str, kept: Kept) -> None:
    both = {"calls": [{"name": "write", "args": {"name": name, "words": name}} for name in ("a", "b")]}
    app = make_app(app_name, agent("clerk", [both, text("done")], [write]))
    async with running(client, app, kept) as user:
        await user.run("go")
        assert deltas(await user.events()) == [{"a": 0, "b": 0}]


@pytest.mark.parametrize("local", [False, True])
async def test_a_plain_function_waits_for_its_artifacts(client: Client, app_name: str, kept: Kept, local: bool) -> None:
    script = [calls("write_plainly", name="a", words=w) for w in ("x", "y")]
    app = make_app(app_name, agent("clerk", [*script, text("done")], [FunctionTool(write_plainly, local=local)]))
    async with running(client, app, kept) as user:
        await user.run("go")
        events = await user.events()
        first, second = responses(events, "write_plainly")
        assert first == {"before": None, "version": 0, "type": "text/plain", "names": ["a"]}
        assert second == first | {"before": "x", "version": 1}
        assert deltas(events) == [{"a": 0}, {"a": 1}]


class Unlucky:
    """A tool that saves, fails behind it as often as told, and is run again."""

    def __init__(self, fail: int, words: Callable[[int], str] = lambda attempt: "the same") -> None:
        self.runs = 0
        self._fail = fail
        self._words = words

    async def unlucky(self, tool_context: ToolContext) -> list[int]:
        """Save the same name twice, and another one."""
        self.runs += 1
        saved = [await tool_context.save_artifact("a", types.Part(text=self._words(self.runs))) for _ in range(2)]
        saved.append(await tool_context.save_artifact("b", types.Part(text="b")))
        if self.runs <= self._fail:
            raise RuntimeError("the network is down")
        return saved


async def test_a_retried_attempt_finds_its_versions(client: Client, app_name: str, kept: Kept) -> None:
    tool = Unlucky(fail=2)
    app = make_app(
        app_name, agent("clerk", [calls("unlucky"), text("done")], [FunctionTool(tool.unlucky, retry=QUICK)])
    )
    async with running(client, app, kept) as user:
        assert (await user.run("go")).status == "finished"
        assert tool.runs == 3
        assert responses(await user.events(), "unlucky") == [{"result": [0, 1, 0]}]
        assert deltas(await user.events()) == [{"a": 1, "b": 0}]
    assert await kept.texts("a") == ["the same", "the same"]


async def test_so_does_a_resume(client: Client, app_name: str, kept: Kept) -> None:
    tool = Unlucky(fail=1)
    app = make_app(app_name, agent("clerk", [calls("unlucky"), text("done")], [FunctionTool(tool.unlucky, retry=ONCE)]))
    async with running(client, app, kept) as user:
        failed = await user.run("go")
        assert failed.status == "failed"
        assert (await user.resumed(failed.id)).status == "finished"
        assert responses(await user.events(), "unlucky") == [{"result": [0, 1, 0]}]
    assert await kept.texts("a") == ["the same", "the same"]


async def test_what_an_attempt_saw_anew_is_a_version_of_its_own(client: Client, app_name: str, kept: Kept) -> None:
    """Else the tool's result would speak of one content and its artifact hold another."""
    tool = Unlucky(fail=1, words=lambda attempt: f"attempt {attempt}")
    app = make_app(
        app_name, agent("clerk", [calls("unlucky"), text("done")], [FunctionTool(tool.unlucky, retry=QUICK)])
    )
    async with running(client, app, kept) as user:
        await user.run("go")
        assert deltas(await user.events()) == [{"a": 3, "b": 0}]
    assert await kept.texts("a") == ["attempt 1", "attempt 1", "attempt 2", "attempt 2"]


async def test_a_tool_that_asks_first_saves_its_draft_and_then_the_rest(
    client: Client, app_name: str, kept: Kept
) -> None:
    async def publish(tool_context: ToolContext) -> str:
        """Publish."""
        if tool_context.tool_confirmation is None:
            await tool_context.save_artifact("page", types.Part(text="page"))
            tool_context.request_confirmation(hint="publish?")
            return "asked"
        await tool_context.save_artifact("page", types.Part(text="page"))
        return "published"

    app = make_app(app_name, agent("clerk", [calls("publish"), text("done")], [publish]))
    async with running(client, app, kept) as user:
        await user.run("go")
        [call_id] = await user.open("adk_request_confirmation")
        await user.answered({call_id: {"confirmed": True}})
        assert deltas(await user.events()) == [{"page": 0}, {"page": 1}]


async def failure(user: User) -> str:
    view = await user.run("go")
    assert view.status == "failed"
    return view.failures[0].cause


async def test_without_a_place_the_tool_fails_with_the_remedy(client: Client, app_name: str) -> None:
    tool = FunctionTool(write, retry=ONCE)
    app = make_app(app_name, agent("clerk", [calls("write", name="a", words="x")], [tool]))
    async with running(client, app, None) as user:
        assert "--artifacts FOLDER" in await failure(user)


async def test_a_save_that_nobody_awaited_is_told_to_the_model(client: Client, app_name: str, kept: Kept) -> None:
    def forget(tool_context: ToolContext) -> str:
        """Forget."""
        _ = tool_context.save_artifact("a", types.Part(text="x"))
        return "saved"

    app = make_app(app_name, agent("clerk", [calls("forget"), text("done")], [FunctionTool(forget, retry=ONCE)]))
    async with running(client, app, kept) as user:
        assert (await user.run("go")).status == "finished"
        (response,) = [found for event in await user.events() for found in event.get_function_responses()]
        assert "'a' was not saved: nobody awaited" in str(response.response)
    assert await kept.texts("a") == []


async def test_an_async_function_that_waits_is_told_to_await(client: Client, app_name: str, kept: Kept) -> None:
    async def block(tool_context: ToolContext) -> Any:
        """Block."""
        return tool_context.wait_for(tool_context.list_artifacts())

    app = make_app(app_name, agent("clerk", [calls("block")], [FunctionTool(block, retry=ONCE)]))
    async with running(client, app, kept) as user:
        assert "in an async function await it" in await failure(user)


async def test_a_name_that_cannot_be_one_fails_the_call(client: Client, app_name: str, kept: Kept) -> None:
    tool = FunctionTool(write, retry=ONCE)
    app = make_app(app_name, agent("clerk", [calls("write", name="../a", words="x")], [tool]))
    async with running(client, app, kept) as user:
        assert "is no relative path" in await failure(user)


# What a model is asked.


def system(model: GatedModel, number: int = -1) -> str:
    config: dict[str, Any] = model.requests[number].config.model_dump()
    return str(config["system_instruction"])


async def test_an_instruction_names_artifacts(client: Client, app_name: str, kept: Kept) -> None:
    model = GatedModel([text("ok")])
    template = "Rules: {artifact.rules.md}; {artifact.user:style?}; {artifact.none?}."
    csv = types.Part.from_bytes(data="Grüße,1".encode(), mime_type="text/csv; charset=utf-8")
    await kept.service.save_artifact(**kept.who, filename="rules.md", artifact=csv)
    await kept.service.save_artifact(**kept.who, filename="user:style", artifact=types.Part(text="{short}"))
    app = make_app(app_name, agent("clerk", model, instruction=template))
    async with running(client, app, kept) as user:
        await user.run("go")
    assert system(model).startswith("Rules: Grüße,1; {short}; .")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none", "does not exist"), ("map.png", "which is no text"), ("../x", "is no relative path")],
)
async def test_an_instruction_whose_artifact_cannot_be_had_fails_the_call(
    client: Client, app_name: str, kept: Kept, name: str, reason: str
) -> None:
    picture = types.Part.from_bytes(data=b"\0", mime_type="image/png")
    await kept.service.save_artifact(**kept.who, filename="map.png", artifact=picture)
    app = make_app(app_name, agent("clerk", [text("ok")], instruction=f"{{artifact.{name}}}"))
    async with running(client, app, kept) as user:
        assert reason in await failure(user)


async def test_a_function_for_an_instruction_reads_artifacts(client: Client, app_name: str, kept: Kept) -> None:
    async def instruct(context: ReadonlyContext) -> str:
        part = await context.load_artifact("rules")
        return f"{part.text if part else None} of {await context.list_artifacts()}"

    await kept.service.save_artifact(**kept.who, filename="rules", artifact=types.Part(text="Be brief"))
    model = GatedModel([text("ok")])
    app = make_app(app_name, agent("clerk", model, instruction=instruct))
    async with running(client, app, kept) as user:
        await user.run("go")
    assert system(model).startswith("Be brief of ['rules']")


async def test_a_model_loads_artifacts_into_one_request(client: Client, app_name: str, kept: Kept) -> None:
    parts = {
        "map.png": types.Part.from_bytes(data=b"\0", mime_type="image/png"),
        "user:prices.json": types.Part.from_bytes(data=b"[1]", mime_type="application/json"),
        "model.bin": types.Part.from_bytes(data=b"\0" * 2048, mime_type="application/x-model"),
        "note": types.Part(text="hello"),
    }
    for name, part in parts.items():
        await kept.service.save_artifact(**kept.who, filename=name, artifact=part)
    asked = ["map.png", "prices.json", "model.bin", "note", "gone", "../x"]
    model = GatedModel([calls("load_artifacts", artifact_names=asked), text("ok"), text("bye")])
    app = make_app(app_name, agent("clerk", model, [load_artifacts]))
    async with running(client, app, kept) as user:
        await user.run("go")
        await user.run("and now?")
        log = "".join(event.to_json() for event in await user.events())
    assert '["map.png", "model.bin", "note", "user:prices.json"]' in system(model, 0)
    loaded = [content for content in model.requests[1].contents if "Artifact" in str(content.parts)]
    assert model.requests[1].contents[-4:] == loaded
    assert [(content.role, (content.parts or [])[1]) for content in loaded] == [
        ("user", parts["map.png"]),
        ("user", types.Part(text="[1]")),
        (
            "user",
            types.Part(
                text="[Binary artifact: model.bin, type: application/x-model, size: 2.0 KB. It cannot be shown.]"
            ),
        ),
        ("user", parts["note"]),
    ]
    assert "Artifact map.png is:" not in log + str(model.requests[2].contents)


async def test_a_model_that_may_load_artifacts_needs_a_place_for_them(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("ok")], [load_artifacts]))
    async with running(client, app, None) as user:
        assert "--artifacts FOLDER" in await failure(user)
