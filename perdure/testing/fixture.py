"""`Perdure`: what the fixture `perdure` gives a test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from perdure.agents.adk_app import AdkApp, AnyApp
from perdure.agents.broken import BrokenApp
from perdure.artifacts import FileArtifactService
from perdure.client import Runner
from perdure.compiler.loading import as_app, load_app
from perdure.config import WorkerConfig
from perdure.credentials import FileCredentialStore
from perdure.errors import DefinitionError
from perdure.models.base import BaseLlm
from perdure.models.scripted import ScriptedModel, ScriptedStep
from perdure.prove.modes import Mode
from perdure.prove.proof import ALL_MODES, ProofConfig
from perdure.prove.proof import prove as run_proof
from perdure.prove.report import Report
from perdure.prove.scenario import ProofScenario
from perdure.prove.target import renamed, unscripted, use_models
from perdure.testing.conversation import Conversation, Served, begin
from perdure.testing.prompts import NotScripted, RecordedModel
from perdure.testing.raised import Raised
from perdure.testing.server import AppWorker, Server, connected
from perdure.testing.turn import transcript

__all__ = ["Model", "Perdure"]

_T = TypeVar("_T")

Model = BaseLlm | Sequence[ScriptedStep | Mapping[str, Any]]
"""What stands for an agent's model: a script's steps, or a model of Perdure's."""

_TIMEOUT = timedelta(seconds=30)

_WORKER = WorkerConfig(
    graceful_shutdown_timeout=timedelta(0),
    # A worker that has ended has a session in memory no more; its next step need not wait for it.
    sticky_timeout=timedelta(seconds=0.3),
    fail_workflows_on_defects=True,
)


class Perdure:
    """Serves apps for one test, with scripts in place of their models; what it started ends with the test."""

    def __init__(self, server: Server, name: str, folder: Callable[[], Path]) -> None:
        """Make it; nothing is started.

        Args:
            server: The server of the test run.
            name: The test's name.
            folder: Makes a folder for artifacts.
        """
        self._server = server
        self._name = name
        self._folder = folder
        self._workers: list[AppWorker] = []
        self._raised = Raised()
        self._undo: list[Callable[[], None]] = []
        self._conversations: list[Conversation] = []

    async def start(
        self,
        app: object,
        *,
        models: Mapping[str, Model] | None = None,
        user_id: str = "user",
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        real_models: bool = False,
        config: WorkerConfig | None = None,
        timeout: timedelta = _TIMEOUT,
    ) -> Conversation:
        """Serve an app until the test ends, and begin a session with it.

        The app is served under a name of the test's own, so that tests share neither sessions nor `app:` state.

        Args:
            app: An app or an agent, Perdure's or google.adk's; or its folder, its file or `MODULE:APP`, as text.
            models: What answers in place of agents' models, by the agent's name: a list of steps (`say`, `call`,
                `fail`), or a model. Agents that are not named keep a model object; one that is known by its name only,
                as a provider's is, fails when it is asked.
            user_id: Whose session.
            session_id: Its id. Default: a fresh one.
            state: Its state at the beginning.
            real_models: Agents without a script ask the models of their names.
            config: Settings of the worker. Default: made for tests, with artifacts and credentials in a temporary
                folder.
            timeout: How long a turn may take until the test fails. Default: 30 s.

        Raises:
            DefinitionError: The app is defined wrongly, or has no such agent, or a step has another form.
            ConnectionFailed: There is no `temporal` program.
        """
        __tracebackhide__ = True
        _check_loop()
        found = _app_of(app)
        recorded = self._script(found, models or {}, real_models=real_models)
        served_as = renamed(found, f"{found.name}_{uuid.uuid4().hex[:8]}")
        config = config or self._config()
        worker = await self._serve(served_as, config)
        client = await connected(await self._server.address())
        served = Served(
            target=app,
            app_name=served_as.name,
            worker=worker,
            client=client,
            runner=Runner(served_as.name, client, credentials=config.credentials),
            raised=self._raised,
            models=recorded,
            timeout=timeout,
        )
        conversation = await begin(served, user_id, session_id, state)
        self._conversations.append(conversation)
        return conversation

    def _script(self, app: AnyApp, models: Mapping[str, Model], *, real_models: bool) -> dict[str, RecordedModel]:
        """Put scripts in the place of agents' models until the test ends; returns them, by agent."""
        recorded = {agent: RecordedModel(_model(agent, given)) for agent, given in models.items()}
        missing = {} if real_models else unscripted(app, recorded)
        stand_ins = {**recorded, **{agent: NotScripted(model) for agent, model in missing.items()}}
        self._undo.append(use_models(app, stand_ins))
        return recorded

    async def _serve(self, app: AnyApp, config: WorkerConfig) -> AppWorker:
        __tracebackhide__ = True
        worker = AppWorker(self._server, await self._server.address(), app, config)
        self._workers.append(worker)
        self._raised.apps.add(app.name)
        try:
            await worker.start()
        except DefinitionError as error:
            # Without the frames of the compiler, which tell a reader nothing.
            raise error.with_traceback(None) from error.__cause__
        return worker

    async def prove(
        self,
        what: object,
        scenario: ProofScenario | Path | Mapping[str, Any] | None = None,
        modes: Sequence[Mode] = ALL_MODES,
        *,
        config: ProofConfig | None = None,
    ) -> Report:
        """Prove that a run can be cut off anywhere and goes on to the same end: run it with each cut, and compare.

        Args:
            what: A conversation, whose messages, answers and resumes are repeated; or an app with a `scenario`. Worker
                processes load the app: it must stand at the top of a module, or be named as text.
            scenario: What the user of an app does; or the file, or the JSON, that says so.
            modes: How to cut. Default: all ways.
            config: Limits and timeouts.

        Raises:
            AssertionError: A cut left something else; it shows the first difference.
            DefinitionError: The scenario is none, or no module holds the app.
        """
        __tracebackhide__ = True
        _check_loop()
        if isinstance(what, Conversation):
            what, scenario = what.served.target, what.scenario(self._name)
        if scenario is None:
            raise DefinitionError("prove takes a conversation, or an app and a scenario")
        client = await connected(await self._server.address())
        report = await run_proof(_loadable(what), scenario, modes, client=client, config=config)
        if not report.ok:
            raise AssertionError(str(report))
        return report

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end, in a test that is a plain function: `talk = perdure.run(perdure.start(app))`."""
        __tracebackhide__ = True
        return self._server.submit(coroutine).result()

    def transcripts(self) -> list[tuple[str, str]]:
        """Return each conversation so far: whose it is, and what happened, line by line."""
        return [
            ("/".join((talk.runner.app_name, *map(str, talk.who.values()))), "\n".join(transcript(talk.log)))
            for talk in self._conversations
        ]

    def close(self) -> None:
        """End what was started, and give the agents their models back."""
        try:
            for worker in self._workers:
                worker.close()
        finally:
            while self._undo:
                self._undo.pop()()
            self._raised.close()

    def _config(self) -> WorkerConfig:
        folder = self._folder()
        return replace(
            _WORKER,
            artifacts=FileArtifactService(str(folder / "artifacts")),
            credentials=FileCredentialStore(str(folder / "credentials")),
        )


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise DefinitionError(
            "the fixture `perdure` needs asyncio; for anyio's plugin, write a fixture anyio_backend that returns"
            " 'asyncio'"
        ) from None


def _app_of(given: object) -> AnyApp:
    """Return the app that a test names.

    Raises:
        DefinitionError: It is none, or cannot run.
    """
    if isinstance(given, BrokenApp):
        raise DefinitionError(f"app {given.name!r} cannot run: {given.reason}")
    if isinstance(given, AdkApp):
        return given
    if isinstance(given, str | Path):
        return load_app(str(given))
    app = as_app(given, str(getattr(given, "name", "app")))
    if app is None:
        raise DefinitionError(f"{given!r} is neither an app nor an agent, nor the name of one as text")
    return app


def _loadable(given: object) -> object:
    """Return an app as worker processes find it, whatever folder they run in."""
    if isinstance(given, str | Path):
        path = Path(given)
        return str(path.resolve()) if path.exists() else str(given)
    return given


def _model(agent: str, given: Model) -> BaseLlm:
    if isinstance(given, BaseLlm):
        return given
    if isinstance(cast("object", given), list | tuple):
        return ScriptedModel(given, model=f"script of {agent}")
    raise DefinitionError(
        f"the model for agent {agent!r} is {given!r}; give a list of steps, as in [say('Hello.')], or a model of"
        " Perdure's"
    )
