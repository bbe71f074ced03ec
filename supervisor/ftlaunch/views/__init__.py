"""Views of jobs for people and programs: report page, dashboard, `ftctl top`, digest, metrics.

Views only read. A command such as a stop goes to the job's supervisor, which decides.
"""
