"""Chromium, for google.adk's page."""

from tests.browser import browser as browser
