"""Sends restarts as traces to OpenTelemetry, from a child process. Nothing here asks the supervisor."""
