"""Token streaming: what models are writing right now, from where they are called to who follows. Never stored."""
