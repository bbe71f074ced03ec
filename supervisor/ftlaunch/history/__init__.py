"""What a run dir tells: journal, runs, goodput. Nothing here needs a running job."""
