"""`python -m ftlaunch` is `ftlaunch`."""

from ftlaunch.cli.launch import main

main()
