"""`python -m ftlaunch` is `ftlaunch`."""

from ftlaunch.cli import main

main()
