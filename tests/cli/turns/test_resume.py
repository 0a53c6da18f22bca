"""`perdure sessions --status` and `perdure resume --failed`: an outage is no hand work."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import App, LlmAgent, ResumabilityConfig
from perdure.cli.turns.resume import parse_duration
from perdure.errors import ModelError
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from tests.cli.support import Perdure, perdure
from tests.workflows.support import User, eventually, make_app, serving

pytestmark = pytest.mark.server

__all__ = ["perdure"]


class Provider(BaseLlm):
    """Fails while it is down, and says for how long it is not to be asked."""

    def __init__(self, *, down: bool = True, failures: int = 0, retry_after: float | None = None) -> None:
        super().__init__("provider")
        self.down = down
        self.failures = failures
        self.retry_after = retry_after
        self.asked: list[float] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append(time.monotonic())
        if self.down or len(self.asked) <= self.failures:
            raise ModelError("overloaded", retryable=True, retry_after=self.retry_after)
        async for response in ScriptedModel([{"text": "Back."}] * 99).generate_content_async(llm_request):
            yield response


def app_of(name: str, model: BaseLlm, retry: RetryPolicy, **fields: object) -> App:
    config = ResumabilityConfig(is_resumable=True)
    root = LlmAgent(name="clerk", model=model)
    return App(name=name, root_agent=root, resumability_config=config, model_retry=retry, **fields)  # pyright: ignore[reportArgumentType] -- as given


FEW = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=10))


async def test_an_app_says_how_often_a_model_is_asked(client: Client, app_name: str) -> None:
    model = Provider()
    async with serving(client, app_of(app_name, model, FEW)) as user:
        await user.create()
        assert (await user.run("go")).status == "failed"
        assert len(model.asked) == 2


async def test_an_outage_may_be_waited_for_without_an_end(client: Client, app_name: str) -> None:
    """More attempts than by default, and the invocation never fails; an agent's own word counts before the app's."""
    model = Provider(down=False, failures=20)
    quick = RetryPolicy(
        maximum_attempts=0, initial_interval=timedelta(milliseconds=5), maximum_interval=timedelta(milliseconds=20)
    )
    root = LlmAgent(name="clerk", model=model, model_retry=quick)
    app = make_app(app_name, root).model_copy(update={"model_retry": FEW})
    async with serving(client, app) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert len(model.asked) == 21


async def test_the_pause_that_a_provider_asks_for_is_kept(client: Client, app_name: str) -> None:
    model = Provider(down=False, failures=1, retry_after=1.5)
    async with serving(client, app_of(app_name, model, FEW)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert model.asked[1] - model.asked[0] >= 1.4


async def test_all_that_failed_is_resumed_at_once(
    client: Client, app_name: str, perdure: Perdure, temporal_server: str
) -> None:
    """A dry run first; only what failed within the time; what does not answer holds up no other."""
    model = Provider()
    at = ("--address", temporal_server)
    async with serving(client, app_of(app_name, model, FEW)) as user:
        users = [user, user.other("u", "t"), user.other("v", "s")]
        for one in users:
            await one.create()
            assert (await one.run("go")).status == "failed"
        await _listed(user, "failed", 3)
        listed = (await perdure("sessions", app_name, "--status", "failed", "--json", *at)).json_lines
        assert len(listed) == 3
        idle = await perdure("sessions", app_name, "--status", "idle", "--status", "waiting", "--json", *at)
        assert idle.json_lines == []
        assert (await perdure("sessions", app_name, "--status", "sad", *at)).code == 64
        model.down = False
        dry = await perdure("resume", app_name, "--failed", "--since", "2h", "--dry-run", *at)
        assert (dry.code, dry.out.count("overloaded")) == (0, 3)
        assert "3 failed invocations; none was resumed" in dry.err
        assert (await perdure("resume", app_name, "--failed", *at)).code == 64
        none = await perdure("resume", app_name, "--failed", "--since", "0.001s", "--yes", *at)
        assert (none.code, none.out) == (0, "")
        mine = await perdure("resume", app_name, "--failed", "--user", "v", "--yes", "--json", *at)
        assert [(line["user_id"], line["became"]) for line in mine.json_lines] == [("v", "resumed")]
        began = time.monotonic()
        rest = await perdure("resume", app_name, "--failed", "--since", "2h", "--yes", "--pace", "1", *at)
        assert (rest.code, "2 of 2 resumed" in rest.err) == (0, True)
        assert time.monotonic() - began >= 1
        for one in users:
            invocation = (await one.view()).invocations[0].id
            assert (await one.settled(invocation)).status == "finished"


async def test_what_cannot_be_resumed_is_told_and_holds_up_no_other(
    client: Client, app_name: str, perdure: Perdure, temporal_server: str
) -> None:
    model = Provider()
    app = app_of(app_name, model, FEW).model_copy(update={"resumability_config": None})
    async with serving(client, app) as user:
        await user.create()
        await user.run("go")
        await user.run("go")
        await _listed(user, "failed", 1)
        done = await perdure("resume", app_name, "--failed", "--yes", "--json", "--address", temporal_server)
        assert done.code == 1
        assert [line["became"] for line in done.json_lines] == ["not resumed", "not resumed"]
        assert "not resumable" in done.err


async def _listed(user: User, status: str, number: int) -> None:
    async def there() -> bool:
        return len(await user.runner.list_sessions(status=(status,))) == number  # pyright: ignore[reportArgumentType] -- one of them

    await eventually(there)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30min", 1800), ("2h", 7200), ("1.5 h", 5400), ("7d", 604_800), ("PT2H", 7200)],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "two hours", "-2h", "0", "2w2", "h", "9" * 400, "PT0S", "nan", "90", "1.5"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None
