"""Attacks that were tried, each with what must come of it."""
