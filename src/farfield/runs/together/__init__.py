"""Many runs that are open at the same time, and whose clients are trained together."""
