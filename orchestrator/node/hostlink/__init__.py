"""A host's end of the connection to the controller: requests, streams and flow control."""
