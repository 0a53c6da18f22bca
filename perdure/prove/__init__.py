"""The resume proof: a scenario runs once uninterrupted, then once for every point at which it can be cut."""
