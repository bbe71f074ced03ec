"""When which step is saved, and where an attempt resumes. The format of the files belongs to the contract."""
