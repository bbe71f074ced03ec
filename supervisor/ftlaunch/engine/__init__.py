"""Runs a job: the event loop waits, and the supervisor acts as the state table says. Decisions are made below."""
