"""What shows a job to people and programs: its page, the dashboard, `ftctl top`, metrics. Nothing here decides."""
