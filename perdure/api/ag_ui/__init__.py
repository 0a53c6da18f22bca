"""AG-UI: the protocol of front ends that show what agents do. Its events are made of a session's log.

https://docs.ag-ui.com
"""
