"""Effects that every room needs, with the standard library alone: plain files, watches of directories, facts of this host."""
