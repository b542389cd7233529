"""Files on a host: event logs, command inboxes, payloads, labels and locks, safe reads and atomic writes."""
