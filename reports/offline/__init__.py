"""Pages that answer further questions without a server."""
