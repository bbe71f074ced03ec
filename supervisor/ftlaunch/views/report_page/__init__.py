"""The page of a job, report.html: bounded data from a run dir, and a file that shows them. Nothing here asks a job."""
