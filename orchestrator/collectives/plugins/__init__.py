"""Plugins, in folders as --plugins takes them."""
