"""What browsers load for the page of all jobs. No Python here."""
