"""`ftctl dashboard`: the pages of jobs, live, for browsers. Read from run dirs; nothing here decides about a job."""
