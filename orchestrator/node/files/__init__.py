"""Files of a node: event logs, payloads, labels and atomic writes."""
