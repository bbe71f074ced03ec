"""Restarts as traces for OpenTelemetry, sent by a process of their own. Nothing here asks the supervisor."""
