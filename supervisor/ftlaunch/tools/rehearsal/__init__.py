"""`ftctl rehearse`: break a short copy of the job on purpose, and compare. Nothing here touches the job's own files."""
