"""Checks that a worker serves an app before anything is begun under its name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from temporalio.client import Client

_PATIENCE = 2.0
"""Seconds for which a worker is waited for that has just been started."""

_PATIENCE_UNLIKE = 8.0
"""The same where no app of a name like it is served: it is more likely about to be than misspelled."""

_NAMED = 20
"""Apps that are served which an error names."""


async def check_served(
    client: Client, app: str, *, undone: str = "nothing was sent", meant: str = "have the message wait for one"
) -> None:
    """Check that a worker serves an app: what is begun under a name that is misspelled would wait for ever.

    Args:
        client: Of Temporal.
        app: The app's name.
        undone: What was not done, in words.
        meant: What `--wait-for-worker` does.

    Raises:
        click.ClickException: None does.
    """
    from perdure.sessions.pollers import is_served, served_apps

    if await is_served(client, app, _PATIENCE):
        return
    apps = await served_apps(client, app)
    near = get_close_matches(app, apps, n=1)
    if not near and await is_served(client, app, _PATIENCE_UNLIKE):
        return
    where = client.service_client.config.target_host
    names = ", ".join(apps[:_NAMED]) + (f" and {len(apps) - _NAMED} more" if len(apps) > _NAMED else "")
    served = f"served at {where}: {names}" if apps else f"no app is served at {where}"
    nearest = f" Did you mean {near[0]!r}?" if near else ""
    raise click.ClickException(
        f"no worker serves app {app!r}, so {undone}; {served}.{nearest} Start a worker by `perdure dev PATH`, or"
        f" say --wait-for-worker to {meant}"
    )
