"""What a job has to tell, as frozen events: each gives its journal fields and its sentence. Nothing here writes."""
