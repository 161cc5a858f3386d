"""Fair tuning: the same number of trials with the same local steps for every method, chosen on source domains alone."""
