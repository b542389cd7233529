"""Does nothing, without a process group: what is left is what ccbed itself costs."""
