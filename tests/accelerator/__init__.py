"""An accelerator of our own: a backend of torch whose devices are asynchronous, and as late as a test wants."""
