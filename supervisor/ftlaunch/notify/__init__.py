"""Sends notices of events to commands, webhooks and Apprise, outside the event loop. The spec chooses the events."""
