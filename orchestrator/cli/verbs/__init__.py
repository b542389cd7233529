"""One module per command of ccbed."""
