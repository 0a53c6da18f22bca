"""What serving processes share: HTTP, probes, the event loop, the development server."""
