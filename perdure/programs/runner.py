"""`Runner`: google.adk's, whose runs are durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage] -- no other place in 1.x
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.events.event import Event as AdkEvent
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.runners import Runner as AdkRunner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types

from perdure.adk import internals
from perdure.adk.events import to_adk
from perdure.adk.loading import as_adk_app
from perdure.agents.adk_app import AdkApp
from perdure.client import Runner as Sessions
from perdure.errors import SessionNotFound
from perdure.programs.code import ProgramCode
from perdure.programs.embedded import embedded
from perdure.programs.session_mirror import Mirror
from perdure.steps.user_code import runs_user_code

__all__ = ["InMemoryRunner", "Runner"]

_TAKEN = frozenset({"streaming_mode", "max_llm_calls", "custom_metadata"})
"""Fields of a `RunConfig` that mean here what they mean to google.adk."""


class Runner(AdkRunner):
    """Runs a program's agents by Temporal, with a worker in the program's own process. ADK: `runners.Runner`.

    It takes the same keywords, and is used the same. Temporal is where `TEMPORAL_ADDRESS` says, or on this machine,
    where a development server is started if none answers. A run that was under way when the program ended goes on when
    such a runner is made again. The program's session service is read as a run begins, and gets each event.

    One that is made or used by the code of an agent's step, such as a tool, runs there as google.adk has it.
    """

    def __init__(self, **fields: Any) -> None:
        """Make a runner; the fields are google.adk's."""
        super().__init__(**fields)
        self._serving: Future[Sessions] | None = None
        if not runs_user_code():
            self._serving = embedded().submit(embedded().serve(self._app_to_serve()))

    def _app_to_serve(self) -> AdkApp:
        plugins = self.plugin_manager.plugins
        # Not checked: google.adk takes any name here.
        app = self.app or App.model_construct(name=self.app_name, root_agent=self.agent, plugins=plugins)
        made = as_adk_app(app, self.app_name)
        assert made is not None, "google.adk's App is one"
        return AdkApp(made.name, made.app, lambda app: ProgramCode(app, self), made.models, made.look)

    async def run_async(  # pyright: ignore[reportIncompatibleMethodOverride] -- 2.x has more parameters than 1.x
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str | None = None,
        new_message: types.Content | None = None,
        state_delta: dict[str, Any] | None = None,
        run_config: RunConfig | None = None,
        **more: Any,
    ) -> AsyncGenerator[AdkEvent, None]:
        """Start, answer or resume an invocation, and yield its agents' events. ADK: `Runner.run_async`.

        Dropping the generator does not stop the run: its events are in the session when it is read next.

        Raises:
            DefinitionError: Perdure cannot run the agents; the message says why.
            ConnectionFailed: No Temporal server answers, and none can be started.
            SessionNotFound: The session service has no such session.
            RequestRefused: The session did not take the message; the subclass says why.
            InvocationFailed: A step failed.
            ValueError: The run's configuration, or a parameter, says what is not supported.
        """
        if self._serving is None or runs_user_code():
            given: dict[str, Any] = {"user_id": user_id, "session_id": session_id, "invocation_id": invocation_id}
            given |= {"new_message": new_message, "state_delta": state_delta, "run_config": run_config, **more}
            async with aclosing(super().run_async(**given)) as plain:
                async for event in plain:
                    yield event
            return
        config = _checked(run_config, more)
        sessions = await asyncio.wrap_future(self._serving)
        mirror = Mirror(self.session_service, await self._session(user_id, session_id), sessions, embedded().call)
        await mirror.begin()
        turn = sessions.run_async(
            user_id=user_id,
            session_id=session_id,
            new_message=new_message,
            invocation_id=invocation_id,
            state_delta=state_delta,
            **_asked(config, new_message),
        )
        try:
            async with aclosing(embedded().stream(turn)) as events:
                async for event in events:
                    if not event.partial:
                        await mirror.logged(event)
                    yield _shown(to_adk(event))
        finally:
            await mirror.fill()

    async def _session(self, user_id: str, session_id: str) -> Session:
        """Return the program's session."""
        who: dict[str, Any] = {"app_name": self.app_name, "user_id": user_id, "session_id": session_id}
        session = await self.session_service.get_session(**who)
        if session is None and self.auto_create_session:
            session = await self.session_service.create_session(**who)
        if session is None:
            raise SessionNotFound(f"Session not found: {session_id}")
        return session

    def run_live(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a live run cannot be durable."""
        raise NotImplementedError("live runs are not durable; use google.adk's own Runner for them")

    async def rewind_async(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: the durable log keeps what was."""
        raise NotImplementedError("a durable session cannot be rewound by a program; begin another one")

    async def close(self) -> None:
        """Close toolsets and plugins. The worker serves the app's other runners, and ends with the program."""
        closing = super().close()
        await (closing if self._serving is None else ProgramCode.where_steps_run(closing))


def _checked(config: RunConfig | None, more: dict[str, Any]) -> RunConfig:
    """Return a run's configuration.

    Raises:
        ValueError: It says something that means nothing here, or a further parameter of google.adk's does.
    """
    config, default = config or RunConfig(), RunConfig()
    # Not by attributes: some are deprecated, and warn.
    set_here = [name for name, value in vars(config).items() if value != vars(default)[name]]
    unknown = [f"run_config.{name}" for name in set_here if name not in _TAKEN] + [name for name in more if more[name]]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not supported by a durable run; leave it out")
    return config


def _asked(config: RunConfig, message: types.Content | None) -> dict[str, Any]:
    """Return what a configuration asks of a message, an answer or a resume."""
    answers = message is not None and any(part.function_response for part in message.parts or [])
    limited = config.max_llm_calls != RunConfig.model_fields["max_llm_calls"].default
    return {
        "streaming": config.streaming_mode == StreamingMode.SSE,
        "metadata": config.custom_metadata,
        # An answer goes on within the limit of what it answers.
        "max_llm_calls": config.max_llm_calls if limited and not answers else None,
    }


def _shown(event: AdkEvent) -> AdkEvent:
    """Return an event as the program gets it: in 1.x each piece has an id of its own."""
    return event.model_copy(update={"id": str(uuid4())}) if event.partial and internals.MAJOR < 2 else event


class InMemoryRunner(Runner):
    """A `Runner` whose services are google.adk's in memory; the sessions themselves are durable."""

    def __init__(
        self, agent: Any = None, *, app_name: str | None = None, app: App | None = None, **fields: Any
    ) -> None:
        """Make a runner, as `google.adk.runners.InMemoryRunner`."""
        if app is None and app_name is None:
            app_name = "InMemoryRunner"
        super().__init__(
            app=app,
            app_name=app_name,
            agent=agent,
            session_service=InMemorySessionService(),
            artifact_service=InMemoryArtifactService(),
            memory_service=InMemoryMemoryService(),
            **fields,
        )
