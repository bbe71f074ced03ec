"""Makes manifests for Kubernetes from a job spec: JobSet, TrainJob or indexed Job. Nothing here talks to a cluster."""
