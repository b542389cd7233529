"""Providers of beds: each observes nodes, performs commands and delivers events."""
