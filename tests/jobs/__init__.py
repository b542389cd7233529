"""Jobs that nobody wrote: drawn from kinds of models, optimizers, schedules, data and saving, and ways to resume them wrongly."""
