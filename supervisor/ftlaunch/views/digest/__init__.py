"""Many runs in one report: what the jobs of a directory did and cost. Nothing here looks at one job in detail."""
