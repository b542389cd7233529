"""Connections to hosts over SSH: keys, proxies, files and requests."""
