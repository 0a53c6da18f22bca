"""What docs/export-import.md takes for granted."""

from google.genai import types

from perdure import Event

events = [Event(author="user", content=types.UserContent("To Oslo, please"))]
