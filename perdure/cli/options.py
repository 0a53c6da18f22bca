"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import importlib
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perdure.messages.keys import SessionKey

if TYPE_CHECKING:
    from temporalio.converter import PayloadCodec

    from perdure.config import ConnectionConfig
    from perdure.encryption.keys import KeyRing
    from perdure.redaction import Redact

_T = TypeVar("_T")

Command = Callable[..., int]
"""A command's function; it returns the exit code."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The Temporal of a command line; what it leaves out comes from Temporal's profiles and the environment."""

    address: str | None
    namespace: str | None
    profile: str | None
    config_file: Path | None
    payload_storage: str | None = None
    payload_codec: str | None = None
    redact: str | None = None
    encryption_keys: Path | None = None
    grpc_compression: bool | None = None

    @property
    def flags(self) -> str:
        """The options again, to be pasted into a shell behind a command; empty if none was given."""
        given = {
            "--address": self.address,
            "--namespace": self.namespace,
            "--profile": self.profile,
            "--config-file": self.config_file,
            "--payload-storage": self.payload_storage,
            "--payload-codec": self.payload_codec,
            "--redact": self.redact,
            "--encryption-keys": self.encryption_keys,
        }
        flags = "".join(f" {option} {shlex.quote(str(value))}" for option, value in given.items() if value is not None)
        return flags + {None: "", True: " --grpc-compression", False: " --no-grpc-compression"}[self.grpc_compression]

    def config(self) -> ConnectionConfig:
        """Return the settings for `perdure.config.connect`."""
        from temporalio.converter import ExternalStorage

        from perdure.config import ConnectionConfig
        from perdure.temporal.core_log import quiet_runtime

        storage = self.payload_storage
        return ConnectionConfig(
            address=self.address,
            namespace=self.namespace,
            profile=self.profile,
            config_file=self.config_file,
            external_storage=found_in_module(storage, "storage", ExternalStorage, "--payload-storage")
            if storage
            else None,
            payload_codec=self.codec(),
            redact=self.redaction(),
            grpc_compression=self.grpc_compression,
            runtime=quiet_runtime(),
        )

    def codec(self) -> PayloadCodec | None:
        """Return the payload codec: with keys of the option, else of the environment, or one of the user's own."""
        from temporalio.converter import PayloadCodec

        codec, keys = self.payload_codec, self.keys()
        if keys is None:
            return found_in_module(codec, "codec", PayloadCodec, "--payload-codec") if codec else None
        if codec is not None:
            raise click.UsageError("encryption keys and --payload-codec both say how to encrypt; give one")
        try:
            from perdure.encryption.codec import EncryptionCodec
        except ImportError as error:
            raise click.UsageError("encryption needs more packages: pip install 'perdure[encryption]'") from error
        return EncryptionCodec(keys)

    def redaction(self) -> Redact | None:
        """Return the function that redacts every text before it is written, if there is one."""
        from types import FunctionType

        return found_in_module(self.redact, "redact", FunctionType, "--redact") if self.redact else None

    def keys(self) -> KeyRing | None:
        """Return the encryption keys, if any are given.

        Raises:
            EncryptionError: They cannot be read.
        """
        from perdure.encryption.keys import KeyRing

        return KeyRing.from_file(self.encryption_keys) if self.encryption_keys else KeyRing.from_environment()


def found_in_module(name: str, usual: str, kind: type[_T], option: str) -> _T:
    """Return the object of a module under `MODULE:NAME`; `usual` is the name if none is given.

    Raises:
        click.BadParameter: It cannot be loaded, or is none of the kind.
    """
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = getattr(importlib.import_module(module), attribute or usual)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"{name!r} cannot be loaded: {error}", param_hint=option) from error
    if not isinstance(found, kind):
        raise click.BadParameter(
            f"{name!r} is a {type(found).__name__}; it must be of {kind.__module__}.{kind.__name__}",
            param_hint=option,
        )
    return found


@dataclass(frozen=True)
class SessionName:
    """A session as the command line names it."""

    app: str
    user: str
    session: str | None

    def key(self, session_id: str | None = None) -> SessionKey:
        """Return the key of the session, or of another one of the same user."""
        return SessionKey(self.app, self.user, session_id or self.session or "")


_codec_option = click.option(
    "--payload-codec",
    envvar="PERDURE_PAYLOAD_CODEC",
    metavar="MODULE:NAME",
    help="A payload codec of yours, which encrypts histories.  [default: none]",
)
_keys_option = click.option(
    "--encryption-keys",
    envvar="PERDURE_ENCRYPTION_KEYS_FILE",
    type=click.Path(path_type=Path),
    help="File of the keys that encrypt histories.  [default: the keys in PERDURE_ENCRYPTION_KEYS, else none]",
)


def codec_options(command: Command) -> Command:
    """Give a command that needs no server the options of encryption; it gets the codec, or `None`, as `codec`."""

    @_codec_option
    @_keys_option
    @functools.wraps(command)
    def wrapped(*args: Any, payload_codec: str | None, encryption_keys: Path | None, **options: Any) -> int:
        named = Connection(
            address=None,
            namespace=None,
            profile=None,
            config_file=None,
            payload_codec=payload_codec,
            encryption_keys=encryption_keys,
        )
        return command(*args, codec=named.codec(), **options)

    return wrapped


def connection_options(command: Command) -> Command:
    """Give a command the options that name a Temporal server; they arrive as `connection`."""

    @click.option("--address", metavar="HOST:PORT", help="Temporal's address.  [default: localhost:7233]")
    @click.option("--namespace", help="Temporal's namespace.  [default: default]")
    @click.option("--profile", help="Profile of Temporal's configuration file.")
    @click.option("--config-file", type=click.Path(path_type=Path), help="Temporal's configuration file (TOML).")
    @click.option(
        "--payload-storage",
        envvar="PERDURE_PAYLOAD_STORAGE",
        metavar="MODULE:NAME",
        help="Temporal's external storage for large payloads.  [default: none]",
    )
    @_codec_option
    @click.option(
        "--redact",
        envvar="PERDURE_REDACT",
        metavar="MODULE:NAME",
        help="A function of yours that redacts every text before it is written.  [default: none]",
    )
    @_keys_option
    @click.option(
        "--grpc-compression/--no-grpc-compression",
        default=None,
        envvar="PERDURE_GRPC_COMPRESSION",
        help="Whether to compress what goes to Temporal and back.  [default: with TLS only]",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        address: str | None,
        namespace: str | None,
        profile: str | None,
        config_file: Path | None,
        payload_storage: str | None,
        payload_codec: str | None,
        redact: str | None,
        encryption_keys: Path | None,
        grpc_compression: bool | None,
        **options: Any,
    ) -> int:
        connection = Connection(
            address=address,
            namespace=namespace,
            profile=profile,
            config_file=config_file,
            payload_storage=payload_storage,
            payload_codec=payload_codec,
            redact=redact,
            encryption_keys=encryption_keys,
            grpc_compression=grpc_compression,
        )
        return command(*args, connection=connection, **options)

    return wrapped


def with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """Give a command options, in the order in which its help is to show them."""
    for option in reversed(options):
        command = option(command)
    return command


def log_options(command: Command) -> Command:
    """Give a command that serves the options of its log: `log_level` and `log_json`."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="Least severe log lines that are shown. Debug shows prompts, answers, arguments and results.",
        ),
        click.option(
            "--log-json/--log-text", default=None, help="Form of the log lines.  [default: text on a terminal]"
        ),
    ]
    return with_options(command, options)


def session_options(*, required: bool) -> Callable[[Command], Command]:
    """Give a command the argument APP and the options that name a session; they arrive as `name`."""

    def decorate(command: Command) -> Command:
        @click.argument("app")
        @click.option("-u", "--user", envvar="PERDURE_USER", default="user", show_default=True, help="User id.")
        @click.option("-s", "--session", required=required, help="Session id.")
        @functools.wraps(command)
        def wrapped(*args: Any, app: str, user: str, session: str | None, **options: Any) -> int:
            return command(*args, name=SessionName(app, user, session), **options)

        return wrapped

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")


def parse_pairs(pairs: Iterable[str], parameter: str) -> dict[str, Any]:
    """Return `KEY=VALUE` arguments as a dictionary; a value that is no JSON is a text.

    Raises:
        click.BadParameter: One is no pair, a key comes twice, or a value begins like JSON and is none.
    """
    parsed: dict[str, Any] = {}
    for key, value in split_pairs(pairs, parameter).items():
        try:
            parsed[key] = json.loads(value)
        except ValueError as error:
            if value.lstrip().startswith(("{", "[", '"')):
                # A slip must not become a text.
                raise click.BadParameter(
                    f"{value!r} looks like JSON, but is none: {error}", param_hint=parameter
                ) from error
            parsed[key] = value
    return parsed


def split_pairs(pairs: Iterable[str], parameter: str) -> dict[str, str]:
    """Return `KEY=VALUE` arguments as a dictionary of texts.

    Raises:
        click.BadParameter: One is no pair, or a key comes twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"{pair!r} is not of the form {parameter}", param_hint=parameter)
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice", param_hint=parameter)
        found[key] = value
    return found
