"""The server of `ftctl dashboard`: live pages of jobs, read from run dirs. Nothing here decides about a job."""
