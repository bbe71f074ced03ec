"""Views of jobs for people and programs: page, dashboard, `ftctl top`, digest, metrics. Nothing here decides."""
