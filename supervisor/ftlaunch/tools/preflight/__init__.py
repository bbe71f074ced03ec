"""`ftctl check`: is this machine fit for the job? Nothing here changes the machine."""
