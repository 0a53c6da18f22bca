"""What readers are told: pages of events, sessions, the ledger of calls, explanations. Pure."""
