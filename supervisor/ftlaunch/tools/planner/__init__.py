"""Computes for `ftctl plan` what failures and settings will cost. Nothing here runs a job."""
