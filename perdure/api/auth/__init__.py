"""Who may do what: credentials, sign-in, and the one place that decides."""
