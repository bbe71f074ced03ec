"""Commands that tell of a job after it, or beside it: reports. None of them commands a job."""
