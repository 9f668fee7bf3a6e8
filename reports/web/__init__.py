"""The web viewer: pages that show the answer to what a URL states."""
