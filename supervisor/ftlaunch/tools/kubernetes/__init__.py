"""Manifests for Kubernetes, made from a job spec: JobSet, TrainJob, indexed Job. Nothing here talks to a cluster."""
