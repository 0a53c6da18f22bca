"""The report of a proof: a verdict for each scenario and mode, and the whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from perdure.prove.modes import Cut, Mode
from perdure.prove.outcome import Repeated

_SHOWN = 60
"""Lines of the first difference that are printed."""


_BY_ITSELF = (
    "two uninterrupted runs differ by themselves, so this proves nothing: a tool, a function or a model does not do the"
    " same each time; make it so for the proof"
)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one scenario in one mode."""

    name: str
    mode: Mode
    cuts: tuple[Cut, ...]
    error: str | None = None
    """Why the scenario could not be run at all."""
    by_itself: bool = False
    """A second uninterrupted run differed, too: a tool or a model does not do the same each time."""

    @property
    def ok(self) -> bool:
        """Whether every cut left what the uninterrupted run left."""
        return self.error is None and not any(cut.problems for cut in self.cuts)

    @property
    def made(self) -> list[Cut]:
        """The cuts that were not skipped."""
        return [cut for cut in self.cuts if cut.skipped is None]

    @property
    def allowed(self) -> Counter[str]:
        """The allowed differences that cuts of the bare log had, and how many of the cuts."""
        return Counter(what for cut in self.cuts for what in cut.allowed)

    @property
    def skipped(self) -> Counter[str]:
        """Why cuts were skipped, and how many of them."""
        return Counter(cut.skipped for cut in self.cuts if cut.skipped is not None)

    @property
    def repeated(self) -> list[tuple[Cut, Repeated]]:
        """The tools that ran again, and at which cut."""
        return [(cut, again) for cut in self.cuts for again in cut.repeated]

    def lines(self) -> list[str]:
        """Return the verdict as it is printed: one line, and the first difference if there is one."""
        runs = sum(again.times for _, again in self.repeated)
        counts = f"{len(self.made)} cut points, {runs} repeated tool runs"
        lines = [f"{'ok' if self.ok else 'FAIL'} {self.name} ({self.mode}, {counts})"]
        lines += [f"  {count} of them: {what}" for what, count in self.allowed.items()]
        lines += [f"  {count} skipped: {why}" for why, count in self.skipped.items()]
        if self.error is not None:
            return [*lines, f"  {self.error}"]
        if self.by_itself:
            lines.append(f"  {_BY_ITSELF}")
        failed = [cut for cut in self.cuts if cut.problems]
        if failed:
            lines.append(f"  {len(failed)} of {len(self.made)} cuts differ; the first, {failed[0].where}:")
            lines += [f"  {line}" for line in failed[0].problems[:_SHOWN]]
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "name": self.name,
            "mode": self.mode,
            "ok": self.ok,
            "cut_points": len(self.made),
            "allowed": dict(self.allowed),
            "skipped": dict(self.skipped),
            "repeated": [
                {"cut": cut.where, "tool": again.tool, "idempotency_key": again.key, "times": again.times}
                for cut, again in self.repeated
            ],
            "error": self.error,
            "by_itself": self.by_itself,
            "differences": [{"cut": cut.where, "lines": list(cut.problems)} for cut in self.cuts if cut.problems],
        }


@dataclass(frozen=True)
class Report:
    """The outcome of a proof."""

    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every verdict is good. A proof of nothing is none."""
        return bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts)

    @property
    def summary(self) -> str:
        """The closing line."""
        passed = sum(verdict.ok for verdict in self.verdicts)
        return f"{passed} passed, {len(self.verdicts) - passed} failed"

    def __str__(self) -> str:
        """Return the whole report as it is printed."""
        return "\n".join([*(line for verdict in self.verdicts for line in verdict.lines()), self.summary])
