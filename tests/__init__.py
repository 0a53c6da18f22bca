"""Perdure's tests."""
