"""The commands `ftlaunch` and `ftctl`: they read options, print text and return exit codes.

Policy for a running job lives elsewhere; a command only starts a job, or asks its supervisor.
"""
