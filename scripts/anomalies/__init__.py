"""Makes single system calls of ftlaunch's processes fail, in one job after another, and judges how each job ends."""
