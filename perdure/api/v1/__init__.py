"""Perdure's own routes."""
