"""What happened, told on terminal, journal and notices. Nothing here decides, and no decision asks it."""
