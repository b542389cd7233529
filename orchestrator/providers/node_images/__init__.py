"""Images for nodes: base image, build and wheels."""
