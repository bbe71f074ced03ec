"""Commands and webhooks that are told of events, beside the loop. What is worth telling is chosen in the spec."""
