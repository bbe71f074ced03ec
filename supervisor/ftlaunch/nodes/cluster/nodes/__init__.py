"""One node as the head sees it: how it arrives, what it asks, what it reports. Nothing here knows all of them."""
