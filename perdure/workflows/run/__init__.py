"""What one run of a session's workflow has: its log, its activities, its limits."""
