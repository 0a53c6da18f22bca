"""Digests of exports: a reader knows by them that all of it is there, as it was written. Pure.

The header counts the lines and holds a digest of them all; the last line holds a short one of each, which tells the
line that was changed. Nobody is kept from writing both anew: this finds damage, it is no seal.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256

from perdure.errors import InvalidTrajectory

_LENGTH = 4
"""Bytes of a line's own digest."""

ADVICE = "; take it with --damaged (damaged=True) as a bare log, if what is left of it will do"


def digest_of(header: str, lines: Sequence[str], digest: str = "") -> str:
    """Return the digest of an export: its header's line without the digest itself, and all lines but the last."""
    found = sha256(header.replace(f'"sha256":"{digest}"', '"sha256":""', 1).encode())
    for line in lines:
        found.update(b"\n")
        found.update(line.encode())
    return found.hexdigest()


def with_digest(header: str, digest: str) -> str:
    """Return a header's line, whose digest is empty, with one."""
    return header.replace('"sha256":""', f'"sha256":"{digest}"', 1)


def digests_of_lines(lines: Sequence[str]) -> str:
    """Return the short digests of lines, as text."""
    return base64.b64encode(b"".join(map(_short, lines))).decode()


def _short(line: str) -> bytes:
    return sha256(line.encode()).digest()[:_LENGTH]


def check_whole(
    header: str, lines: Sequence[tuple[int, str]], *, expected: int, digest: str, digests: str | None
) -> None:
    """Check that an export has the lines with which it was written.

    Args:
        header: Its first line.
        lines: Those between the first and the last one, with their numbers.
        expected: How many the header counts.
        digest: The header's digest.
        digests: Those of the last line; `None` if it is missing.

    Raises:
        InvalidTrajectory: Lines are missing or changed; the message names the first.
    """
    end = lines[-1][0] + 1 if lines else 2
    if digests is None:
        raise InvalidTrajectory(
            f"line {end}: the file breaks off here, without its last line; it was written with {expected} lines between"
            f" the first and the last"
        )
    known = _parse(digests)
    for (number, line), short in zip(lines, known, strict=False):
        if _short(line) != short:
            raise InvalidTrajectory(f"line {number} is not the line that was written here: it was changed")
    if len(lines) != expected or len(known) != expected:
        raise InvalidTrajectory(
            f"line {end}: the header counts {expected} lines between the first and the last, and there are {len(lines)}"
        )
    if digest_of(header, [line for _, line in lines], digest) != digest:
        raise InvalidTrajectory("line 1 is not the header that was written: it was changed")


def _parse(digests: str) -> list[bytes]:
    try:
        data = base64.b64decode(digests, validate=True)
    except ValueError:
        data = b""
    return [data[at : at + _LENGTH] for at in range(0, len(data), _LENGTH)]
