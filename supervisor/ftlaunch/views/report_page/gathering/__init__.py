"""Gathers from a journal what the page shows, in bounded memory. Nothing here reads logs or autopsies."""
