"""A stand-in for torch._dynamo, which the fork server imports with torch."""
