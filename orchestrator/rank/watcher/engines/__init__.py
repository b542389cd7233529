"""Adapters for training engines that keep the parameters that their optimizer steps apart from those of the model."""
