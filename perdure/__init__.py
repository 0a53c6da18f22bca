"""Perdure: agent trees, written as in Google's ADK, that run, wait and resume as Temporal workflows.

Importing this package loads nothing: each name is loaded at its first use, since google-genai alone takes two seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.agents import (
        Agent,
        AgentTool,
        App,
        BaseAgent,
        BaseAgentState,
        FunctionTool,
        InvocationContext,
        LlmAgent,
        LongRunningFunctionTool,
        LoopAgent,
        ParallelAgent,
        ReadonlyContext,
        ResumabilityConfig,
        SequentialAgent,
        State,
        ToolContext,
        exit_loop,
        load_artifacts,
        transfer_to_agent,
    )
    from perdure.agents.durable import durable
    from perdure.agents.expiry import (
        AnswerError,
        AnswerWith,
        FailInvocation,
    )
    from perdure.artifacts import (
        ArtifactService,
        ArtifactVersion,
        BlobArtifactService,
        FileArtifactService,
    )
    from perdure.client import (
        Runner,
    )
    from perdure.compiler.loading import load_app
    from perdure.config import (
        ConnectionConfig,
        WorkerConfig,
        connect,
    )
    from perdure.errors import (
        ArtifactError,
        CallAnswered,
        CallNotFound,
        ConnectionFailed,
        CredentialError,
        DefinitionError,
        DefinitionWarning,
        EffectFailed,
        EncryptionError,
        HistoryDiffers,
        InvalidArguments,
        InvalidMessage,
        InvalidTrajectory,
        InvocationFailed,
        InvocationFinished,
        InvocationNotFound,
        InvocationRunning,
        LogError,
        MixedInvocations,
        ModelError,
        NotResumable,
        PerdureError,
        QueueFull,
        RequestIdTaken,
        RequestRefused,
        SessionExists,
        SessionFull,
        SessionNotFound,
        SessionStuck,
        SessionUnreadable,
        SharedStateFull,
    )
    from perdure.journal.events import (
        Event,
        EventActions,
        ToolConfirmation,
    )
    from perdure.journal.open_calls import PendingCall
    from perdure.messages.effects import Effect
    from perdure.messages.session import InvocationResult, InvocationView, SessionView
    from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
    from perdure.models.gemini import (
        Gemini,
    )
    from perdure.models.registry import LLMRegistry
    from perdure.models.scripted import (
        ScriptedModel,
    )
    from perdure.programs.a2a import to_a2a
    from perdure.rules.in_doubt import (
        Reconciled,
    )
    from perdure.sessions.listing import (
        ListedSession,
    )
    from perdure.worker import (
        create_workers,
        run_workers,
    )

    __version__: str

__all__ = [
    "Agent",
    "AgentTool",
    "AnswerError",
    "AnswerWith",
    "App",
    "ArtifactError",
    "ArtifactService",
    "ArtifactVersion",
    "BaseAgent",
    "BaseAgentState",
    "BaseLlm",
    "BlobArtifactService",
    "CallAnswered",
    "CallNotFound",
    "ConnectionConfig",
    "ConnectionFailed",
    "CredentialError",
    "DefinitionError",
    "DefinitionWarning",
    "Effect",
    "EffectFailed",
    "EncryptionError",
    "Event",
    "EventActions",
    "FailInvocation",
    "FileArtifactService",
    "FunctionTool",
    "Gemini",
    "HistoryDiffers",
    "InvalidArguments",
    "InvalidMessage",
    "InvalidTrajectory",
    "InvocationContext",
    "InvocationFailed",
    "InvocationFinished",
    "InvocationNotFound",
    "InvocationResult",
    "InvocationRunning",
    "InvocationView",
    "LLMRegistry",
    "ListedSession",
    "LlmAgent",
    "LlmRequest",
    "LlmResponse",
    "LogError",
    "LongRunningFunctionTool",
    "LoopAgent",
    "MixedInvocations",
    "ModelError",
    "NotResumable",
    "ParallelAgent",
    "PendingCall",
    "PerdureError",
    "QueueFull",
    "ReadonlyContext",
    "Reconciled",
    "RequestIdTaken",
    "RequestRefused",
    "ResumabilityConfig",
    "Runner",
    "ScriptedModel",
    "SequentialAgent",
    "SessionExists",
    "SessionFull",
    "SessionNotFound",
    "SessionStuck",
    "SessionUnreadable",
    "SessionView",
    "SharedStateFull",
    "State",
    "ToolConfirmation",
    "ToolContext",
    "WorkerConfig",
    "__version__",
    "connect",
    "create_workers",
    "durable",
    "exit_loop",
    "load_app",
    "load_artifacts",
    "run_workers",
    "to_a2a",
    "transfer_to_agent",
]

# fmt: off
_NAMES: dict[str, tuple[str, ...]] = {
    "perdure.agents": (
        "Agent", "AgentTool", "App", "BaseAgent", "BaseAgentState", "FunctionTool", "InvocationContext", "LlmAgent",
        "LongRunningFunctionTool", "LoopAgent", "ParallelAgent", "ReadonlyContext", "ResumabilityConfig",
        "SequentialAgent", "State", "ToolContext", "exit_loop", "load_artifacts", "transfer_to_agent",
    ),
    "perdure.artifacts": ("ArtifactService", "ArtifactVersion", "BlobArtifactService", "FileArtifactService"),
    "perdure.client": ("Runner",),
    "perdure.compiler.loading": ("load_app",),
    "perdure.config": ("ConnectionConfig", "WorkerConfig", "connect"),
    "perdure.rules.in_doubt": ("Reconciled",),
    "perdure.errors": (
        "ArtifactError", "CallAnswered", "CallNotFound", "ConnectionFailed", "CredentialError",
        "DefinitionError", "DefinitionWarning", "EffectFailed", "EncryptionError", "HistoryDiffers",
        "InvalidArguments", "InvalidMessage", "InvalidTrajectory", "InvocationFailed", "InvocationFinished",
        "InvocationNotFound", "InvocationRunning", "LogError", "MixedInvocations", "ModelError", "NotResumable",
        "PerdureError", "QueueFull", "RequestIdTaken", "RequestRefused", "SessionExists", "SessionFull",
        "SessionNotFound", "SessionStuck", "SessionUnreadable", "SharedStateFull",
    ),
    "perdure.journal.events": ("Event", "EventActions", "ToolConfirmation"),
    "perdure.journal.open_calls": ("PendingCall",),
    "perdure.agents.durable": ("durable",),
    "perdure.agents.expiry": ("AnswerError", "AnswerWith", "FailInvocation"),
    "perdure.messages.effects": ("Effect",),
    "perdure.messages.session": ("InvocationResult", "InvocationView", "SessionView"),
    "perdure.models.base": ("BaseLlm", "LlmRequest", "LlmResponse"),
    "perdure.models.registry": ("LLMRegistry",),
    "perdure.models.gemini": ("Gemini",),
    "perdure.models.scripted": ("ScriptedModel",),
    "perdure.programs.a2a": ("to_a2a",),
    "perdure.sessions.listing": ("ListedSession",),
    "perdure.worker": ("create_workers", "run_workers"),
}
# fmt: on
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("perdure")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
