"""Tests in which the Temporal server itself, or the way to it, fails."""
