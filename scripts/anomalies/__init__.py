"""Makes one system call of one process of ours fail, again and again, and sees what becomes of the job."""
