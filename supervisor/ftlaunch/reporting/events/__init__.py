"""Events of a job, as frozen data: each gives its journal fields and its sentence. Nothing here writes."""
