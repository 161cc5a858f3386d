"""From a plan to results: settings and presets, one run, a sweep of runs, and the bench that compares methods."""
