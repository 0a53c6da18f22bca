"""The parts of one run of a session's workflow: its log, its activities, its limits.

Here belongs what begins anew with each continue-as-new.
"""
