"""Encodes names as parts of paths: safe on every file system and in every object store, and to be read back."""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import unquote

_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
"""What Windows takes for a device."""
_MAX, _HEAD = 150, 100
_CUT = "~"
"""Stands in no other encoded name."""


def encode_name(name: str) -> str:
    """Return a name as one part of a path: lower-case ASCII, 150 characters at the most.

    Two names never become one, also where upper and lower case are the same, or two spellings of an accent. A long name
    is cut, and told from others by a digest.

    Raises:
        UnicodeEncodeError: The name holds a lone surrogate.
    """
    data = name.encode()
    encoded = "".join(chr(byte) if byte in _KEPT else f"%{byte:02x}" for byte in data)
    if encoded.startswith(".") or _RESERVED.match(encoded):
        encoded = f"%{data[0]:02x}{encoded[1:]}"
    if encoded.endswith("."):
        encoded = f"{encoded[:-1]}%2e"
    if len(encoded) <= _MAX:
        return encoded
    head = re.sub(r"%.?$", "", encoded[:_HEAD])
    return f"{head}{_CUT}{sha256(data).hexdigest()[:40]}"


def decode_name(part: str) -> str | None:
    """Return the name that was encoded; `None` if it was cut."""
    return None if _CUT in part else unquote(part)
