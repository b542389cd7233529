"""The watcher: records in each training process what every PyTorch job does anyway, without a changed line in its script."""
