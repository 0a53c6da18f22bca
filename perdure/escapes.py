"""Makes text harmless for a terminal: what would steer it, reorder it or break its lines becomes an escape. Pure."""

from __future__ import annotations

import re

__all__ = ["escaped", "escaped_json"]

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u00ad\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
_BREAKS = "\u2028\u2029"
_HARMFUL = rf"\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}{_BREAKS}"
_IN_TEXT = re.compile(f"[{_HARMFUL}]")
_IN_LINE = re.compile(rf"[{_HARMFUL}\t\n]")


def escaped(text: str, *, lines: bool = False) -> str:
    r"""Return text with control characters, marks of direction and line separators as `\x1b` or `\u202e`.

    Args:
        text: Anything.
        lines: Line ends and tabs stay as they are: the text may have several lines.
    """
    return (_IN_TEXT if lines else _IN_LINE).sub(_escape, text)


def escaped_json(text: str) -> str:
    """Return JSON of the same meaning with such characters as JSON's own escapes; outside of strings there are none."""
    return _IN_TEXT.sub(_json_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[match[0]]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\r":
        # Only between values: inside of a string it is written as an escape already.
        return match[0]
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
