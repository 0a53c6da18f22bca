"""Says before anything runs what of an app is durable, what is not, and what would not survive a worker."""

from __future__ import annotations
