"""Words the error of a command that cannot listen on its address."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import click


@contextmanager
def taking(what: str, remedy: str) -> Generator[None]:
    """Word the error of an address that cannot be had: its purpose, the reason, the remedy.

    Raises:
        click.ClickException: It cannot be had.
    """
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{what}: {error.strerror or error}; {remedy}") from error
    except UnicodeError as error:
        # A host name with an empty or a long label, which Python does not encode.
        raise click.ClickException(f"{what}: {error}; {remedy}") from error
