"""The page of a job, report.html: bounded data from a run dir, and one file that shows them. Nothing here asks a job."""
