"""Makes the page of a job, `report.html`, from a run dir, in bounded memory. Nothing here asks a job."""
