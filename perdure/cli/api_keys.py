"""`api-keys`: makes the keys by which people and programs call the HTTP API, and lists them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import json_option
from perdure.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from perdure.api.auth.api_keys import Role


@click.group("api-keys")
def api_keys() -> None:
    """Make and list the API keys in the file of --auth; docs/security.md tells what stands in it.

    \b
    Example:
      perdure api-keys new auth.toml --subject ann
    """


@api_keys.command("new")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--subject", required=True, metavar="USER", help="The user id that the key is of.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(["operator", "approver"]),
    help="operator: everything, for every user. approver: sees every user's sessions and answers. Repeatable.",
)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="How long it opens.  [default: for ever]")
@json_option
def new(file: Path, subject: str, roles: tuple[Role, ...], days: float | None, as_json: bool) -> int:
    """Make an API key. It is printed this once; FILE, which is made if it is not there, keeps its hash.

    Without a role it opens the sessions of its subject alone. To take a key back, delete its block from FILE. Servers
    that run take that up within a second or two.

    \b
    Examples:
      perdure api-keys new auth.toml --subject ann
      perdure api-keys new auth.toml --subject bob --role approver --days 90
      perdure api travel.agent:app --auth auth.toml
    """
    from perdure.api.auth.api_keys import ApiKey, append_key

    lasts = timedelta(days=days) if days is not None else None
    key, text = ApiKey.new(subject, now=datetime.now(UTC), roles=roles, lasts=lasts)
    append_key(file, key)
    if as_json:
        show_json({"id": key.id, "key": text, "file": str(file), "subject": subject, "roles": key.roles})
    else:
        say(text)
        say(f"perdure: the hash of key {key.id} is in {file}; the key is shown this once", err=True)
    return ExitCode.FINISHED


@api_keys.command("list")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def list_(file: Path, as_json: bool) -> int:
    """List the API keys in FILE: whose they are, and what they may do. No key is shown.

    \b
    Example:
      perdure api-keys list auth.toml
    """
    from perdure.api.auth.config import read_auth

    keys = read_auth(file).keys
    if as_json:
        for key in keys:
            show_json(key.model_dump(mode="json", exclude={"sha256"}))
        return ExitCode.FINISHED
    now = datetime.now(UTC)
    rows = [
        (
            key.id,
            key.subject,
            ", ".join(key.roles) or "-",
            f"{key.created:%Y-%m-%d}",
            "never" if key.expires is None else f"{key.expires:%Y-%m-%d}{' (expired)' if key.expires <= now else ''}",
        )
        for key in keys
    ]
    show_table(("KEY", "SUBJECT", "ROLES", "MADE", "EXPIRES"), rows)
    return ExitCode.FINISHED
