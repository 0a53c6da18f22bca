"""What a worker that is not versioned says of its code to Temporal: whoever looks at its task queue reads it there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BuildId:
    """The build id of an unversioned worker."""

    app: str
    plan: str
    """The beginning of its plan's digest."""
    code: str | None = None
    """The digest of the files that the app was loaded from; `None` if a program made it."""

    def __str__(self) -> str:
        return f"{self.app}-{self.plan}" + (f".{self.code}" if self.code is not None else "")

    @classmethod
    def parse(cls, text: str) -> BuildId | None:
        """Return the build id that a text is; `None` if it is another one."""
        app, dash, digests = text.partition("-")
        plan, _, code = digests.partition(".")
        return cls(app, plan, code or None) if dash and app.isidentifier() else None
