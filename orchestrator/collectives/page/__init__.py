"""The part of a page that shows measured collectives."""
