"""What docs/artifacts.md takes for granted."""

from textwrap import shorten as shorten

from google.genai import types as types

from perdure import ToolContext as ToolContext


def render(city: str) -> bytes:
    return city.encode()
