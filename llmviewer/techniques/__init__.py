"""Techniques, one small file each; `registry.py` lists them in the order of application."""
