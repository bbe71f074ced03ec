"""Metrics of a job for Prometheus, traces for OpenTelemetry, and progress for Kubeflow's Trainer.

Each is sent by a child process of the supervisor, which reads journal and pages itself. Nothing here judges a job.
"""
