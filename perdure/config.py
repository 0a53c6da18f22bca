"""Settings of the connection to Temporal and of a worker.

A connection takes its address, namespace, TLS and API key from Temporal's own profiles (`temporal.toml` and the
`TEMPORAL_…` environment variables); what is given here comes before them.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import re
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from temporalio.client import Client, Interceptor
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    PayloadCodec,
)
from temporalio.envconfig import ClientConfigProfile
from temporalio.runtime import Runtime
from temporalio.service import GrpcCompression, TLSConfig

from perdure.errors import ConnectionFailed, DefinitionError
from perdure.logs import redact_logs
from perdure.redaction import Redact, redacting, safely
from perdure.temporal.payloads import BoundedFailureConverterWithEncodedAttributes, data_converter

if TYPE_CHECKING:
    from perdure.artifacts.service import ArtifactService
    from perdure.credentials.store import CredentialStore
    from perdure.notices.settings import NoticeSettings

__all__ = ["DEFAULT_ADDRESS", "DEFAULT_NAMESPACE", "ConnectionConfig", "WorkerConfig", "connect"]

DEFAULT_ADDRESS = "localhost:7233"
"""Where Temporal is looked for if nothing says otherwise."""

DEFAULT_NAMESPACE = "default"
"""The namespace if nothing says otherwise."""

_EXIT_PAUSE = 0.1
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """Settings of the connection to Temporal. Unset fields come from Temporal's profile, then from the defaults.

    Temporal: https://docs.temporal.io/develop/environment-configuration
    """

    address: str | None = None
    """`HOST:PORT` of the frontend. Default: `TEMPORAL_ADDRESS`, the profile's, `localhost:7233`."""
    namespace: str | None = None
    """Default: `TEMPORAL_NAMESPACE`, the profile's, `default`."""
    api_key: str | None = field(default=None, repr=False)
    """Switches TLS on. Default: `TEMPORAL_API_KEY`, the profile's, none."""
    tls: TLSConfig | bool | None = field(default=None, repr=False)
    """`False` is none, `True` the system's certificates. Default: `TEMPORAL_TLS…`, the profile's, none."""
    profile: str | None = None
    """Name of the profile. Default: `TEMPORAL_PROFILE`, `default`."""
    config_file: Path | None = None
    """TOML file of the profiles. Default: `TEMPORAL_CONFIG_FILE`, Temporal's own place for it."""
    external_storage: ExternalStorage | None = field(default=None, repr=False)
    """Where large payloads are kept instead of in Temporal's histories: Temporal's own `ExternalStorage`, with its
    driver for S3, Google Cloud Storage, or one of yours. The same for every client and worker. Default: none."""
    payload_codec: PayloadCodec | None = field(default=None, repr=False)
    """Encrypts what histories hold, errors too: an `EncryptionCodec` of `perdure.encryption.codec`, or a `PayloadCodec`
    of yours. The same for every client and worker. Default: none."""
    redact: Redact | None = field(default=None, repr=False)
    """Sees every text that this client writes into a history (messages, answers, state), and a worker that uses it, and
    each log line: returns it without what nobody should read. Default: none."""
    interceptors: tuple[Interceptor, ...] = field(default=(), repr=False)
    """What stands before each call of the client, and of a worker that uses it: `perdure.telemetry.tracing`, or
    Temporal interceptors of yours. Default: none."""
    runtime: Runtime | None = field(default=None, repr=False)
    """Temporal's runtime, which says where metrics go: `perdure.telemetry.metrics`, or one of yours. Default: the
    process's own, without metrics."""
    grpc_compression: bool | None = None
    """Whether to compress what goes to the server and back, with gzip. Default: with TLS only."""
    timeout: timedelta = timedelta(seconds=10)
    """How long the server may take to answer. Default: 10 s."""

    @property
    def data_converter(self) -> DataConverter:
        """How payloads are written, stored and encrypted."""
        converter = replace(data_converter, external_storage=self.external_storage, payload_codec=self.payload_codec)
        if self.payload_codec is not None:
            converter = replace(converter, failure_converter_class=BoundedFailureConverterWithEncodedAttributes)
        return converter if self.redact is None else redacting(converter, self.redact)

    def resolve(self) -> ConnectionConfig:
        """Return the config with every unset field filled in from the profile and the defaults.

        Raises:
            ConnectionFailed: The profile or its file cannot be read. Not retried.
        """
        return _resolve(self)[0]


@functools.cache
def pause_at_exit() -> None:
    """Have the process wait a moment when it ends, for the threads of Temporal's core.

    They take the interpreter's lock to drop what was cancelled; those that come once Python is shutting down let it
    hang for good, or abort it (sdk-python issue 300). What is registered later with `atexit` comes before the moment.
    """
    atexit.register(time.sleep, _EXIT_PAUSE)


async def connect(config: ConnectionConfig | None = None, *, lazy: bool = False) -> Client:
    """Return a Temporal client that speaks Perdure's payloads.

    Args:
        config: Which Temporal. Default: what Temporal's profiles and environment variables say.
        lazy: Connect at the first call only, which then fails if no server answers. A worker takes no such client.

    Raises:
        ConnectionFailed: No server answers at the address, or it refuses. The same call may succeed later.
    """
    pause_at_exit()
    if config is not None and config.redact is not None:
        redact_logs(safely(config.redact))
    resolved, metadata = _resolve(config or ConnectionConfig())
    # It costs more than it saves within a network: journal slices are packed already (decision 010).
    compress = bool(resolved.tls) if resolved.grpc_compression is None else resolved.grpc_compression
    try:
        async with asyncio.timeout(resolved.timeout.total_seconds()):
            return await Client.connect(
                resolved.address or DEFAULT_ADDRESS,
                namespace=resolved.namespace or DEFAULT_NAMESPACE,
                api_key=resolved.api_key,
                tls=resolved.tls or False,
                grpc_compression=GrpcCompression.GZIP if compress else GrpcCompression.NONE,
                rpc_metadata=metadata,
                data_converter=resolved.data_converter,
                interceptors=resolved.interceptors,
                runtime=resolved.runtime,
                lazy=lazy,
            )
    except TimeoutError as error:
        _refuse(resolved, f"no answer within {resolved.timeout.total_seconds():g} s", error)
    except (RuntimeError, ValueError) as error:
        _refuse(resolved, _reason(error), error)


def _resolve(config: ConnectionConfig) -> tuple[ConnectionConfig, dict[str, str]]:
    """Return the config filled in, and the profile's gRPC metadata."""
    profile, profile_tls = _load_profile(config)
    api_key = config.api_key if config.api_key is not None else profile.api_key
    tls = config.tls if config.tls is not None else profile_tls
    resolved = replace(
        config,
        address=config.address or profile.address or DEFAULT_ADDRESS,
        namespace=config.namespace or profile.namespace or DEFAULT_NAMESPACE,
        api_key=api_key,
        tls=tls if tls is not None else api_key is not None,
    )
    return resolved, dict(profile.grpc_meta)


def _load_profile(config: ConnectionConfig) -> tuple[ClientConfigProfile, TLSConfig | bool | None]:
    if config.config_file is not None and not config.config_file.is_file():
        # Temporal passes over a file that is not there, also over one that was asked for.
        raise ConnectionFailed(f"there is no file {str(config.config_file)!r} to read Temporal's profiles from")
    try:
        profile = ClientConfigProfile.load(config.profile, config_source=config.config_file)
        return profile, profile.to_client_connect_config().get("tls")
    except (RuntimeError, OSError) as error:
        source = str(config.config_file) if config.config_file else "Temporal's configuration"
        raise ConnectionFailed(
            f"{source}, profile {config.profile or 'default'!r}: {error}; correct it, or name another one by "
            "TEMPORAL_CONFIG_FILE and TEMPORAL_PROFILE"
        ) from error


def _reason(error: Exception) -> str:
    """Return what the operating system said, where the error of Temporal's core quotes it, or else all of the error."""
    quoted = re.search(r'message: "([^"]+)"', str(error))
    return quoted[1] if quoted else str(error)


def _refuse(config: ConnectionConfig, reason: str, cause: Exception) -> NoReturn:
    raise ConnectionFailed(
        f"no Temporal server answers at {config.address!r} (namespace {config.namespace!r}): {reason}; start one with "
        "`perdure dev`, or name another by TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE"
    ) from cause


_MAX_STEPS = 100
"""As of `App.steps_per_activity`."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Settings of one worker process: how much it does at a time, and how soon that is noticed."""

    max_concurrent_activities: int = 100
    """Model calls and tools of one app at work at the same time. Default: 100."""
    tool_threads: int = 32
    """Threads of a process for tools that are plain functions, and as many for instructions; more wait for a free one.
    Default: 32."""
    max_concurrent_workflow_tasks: int = 4
    """Workflow tasks of one app at work at the same time, at least 2. Python computes one after the other in any case,
    and many at once, as when a restarted worker replays its sessions, outlast the seconds that each has. A task has a
    place as long as its local tools run; what waits longer than `sticky_timeout` for one may be replayed by another
    worker. Default: 4."""
    max_cached_workflows: int = 1000
    """Sessions of one app kept in memory; one that is not replays its history at its next step, which is dear: keep
    it above the number of sessions that are active at a time. 0 replays always, for tests. Default: 1000."""
    sticky_timeout: timedelta = timedelta(seconds=2)
    """How long a session's next step waits for the worker that has the session in memory; then any worker takes it, and
    replays the session. Where a worker died in a model call or a tool, the retry of that moves the session at once. Its
    other sessions, and tools that are not retried, wait so long if they go on within ten seconds. Default: 2 s."""
    steps_per_activity: int | None = None
    """How many steps of an LLM agent one activity may take, 1 to 100, in all apps; google.adk's have no other place to
    say it (docs/performance.md). Default: as each app says, one."""
    heartbeats: Literal["frequent", "sparse"] = "frequent"
    """How soon the server notices that the worker is gone which runs a model call or a tool: `frequent`, after 3.5 s,
    by a heartbeat every 2.1 s; `sparse`, after 28 s, by one every 16.8 s, for servers that bill them. A stop reaches
    them with a heartbeat. What has a `heartbeat_timeout` of its own keeps it. Default: frequent."""
    graceful_shutdown_timeout: timedelta = timedelta(seconds=10)
    """How long running model calls and tools may go on when the worker is told to end; then they are cancelled and
    run again elsewhere. Default: 10 s."""
    journal_cache_bytes: int = 64_000_000
    """Memory for copies of sessions' journals, in bytes of JSON, shared by the apps of a process. Default: 64 MB."""
    artifacts: ArtifactService | None = field(default=None, repr=False)
    """Where tools keep artifacts: a `FileArtifactService`, or one of yours; the same for every worker of an app, and
    for the HTTP API. Default: nowhere, so that a tool that saves or loads one fails."""
    credentials: CredentialStore | None = field(default=None, repr=False)
    """Where the secrets of credentials are kept that tools of google.adk ask users for: a `FileCredentialStore`, or one
    of yours; the same for every worker of an app, and for the clients and the HTTP API that take answers. Histories
    hold references to them. Default: histories hold them, if these are encrypted; else such a tool fails."""
    redact: Redact | None = field(default=None, repr=False)
    """Sees every text that the worker writes into a history (what tools and models return, what errors say), and each
    log line, and returns it without what nobody should read; give it to clients, too (`ConnectionConfig`). With
    it nobody hears what models write before it is complete. Default: the client's, or none."""
    notices: NoticeSettings | None = field(default=None, repr=False)
    """Who is told outside of Perdure, by a webhook or e-mail, when a call waits or is due, or an invocation fails:
    `perdure.notices.settings.read_settings` reads a file of that. The same for every worker of an app. Default:
    nobody."""
    identity: str | None = None
    """Name of the worker in the Temporal UI. Default: process id and host."""
    debug: bool = False
    """No deadlock detection, so that a debugger can stop in workflow code. Default: off."""
    missing_code_attempts: int = 30
    """How often a tool, model or function that a worker lacks is looked for, on this worker or another, before its step
    fails; it can be resumed. Default: 30."""
    missing_code_pause: timedelta = timedelta(seconds=10)
    """Between two of these attempts; make all of them last longer than a rollout does. Default: 10 s."""
    deployment: str | None = None
    """Name of the worker deployment that this worker is a version of, in Temporal's worker versioning; it needs a
    `build_id`. Default: not versioned, so that any worker of an app goes on with any session."""
    build_id: str | None = None
    """Which version of the deployment this worker is: any text that changes with the code."""
    versioning: Literal["pinned", "auto-upgrade"] | None = None
    """`pinned`: a session stays with the version on which its current run began, until it continues as new.
    `auto-upgrade`: its next step goes to the version that is current. Only with a `deployment`.
    Default: auto-upgrade."""
    fail_workflows_on_defects: bool = False
    """A defect or a replay that differs fails the session's workflow, instead of being tried again until a deployment
    mends it; for tests, which would hang. Default: off."""

    def __post_init__(self) -> None:
        """Check that it can work, and that it says which version it is if, and only if, it is versioned."""
        if self.max_concurrent_workflow_tasks < 2:
            raise DefinitionError(
                f"a worker cannot have {self.max_concurrent_workflow_tasks} workflow tasks at a time; give at least 2:"
                " Temporal polls for sessions in memory and for others"
            )
        if self.steps_per_activity is not None and not 1 <= self.steps_per_activity <= _MAX_STEPS:
            raise DefinitionError(
                f"an activity cannot take {self.steps_per_activity} steps; give a number from 1 to {_MAX_STEPS}"
            )
        if self.sticky_timeout <= timedelta(0):
            raise DefinitionError(
                f"a session cannot wait {self.sticky_timeout.total_seconds():g} s for its worker; give a sticky_timeout"
                " above 0"
            )
        if (self.deployment is None) != (self.build_id is None):
            raise DefinitionError(
                f"a worker of deployment {self.deployment!r} has build id {self.build_id!r}; give both a"
                " deployment and a build id, or neither"
            )
        if self.versioning is not None and self.deployment is None:
            raise DefinitionError(
                f"a worker that is not versioned has versioning {self.versioning!r}; give a deployment and a build id"
                " as well, or leave versioning out"
            )
