"""Techniques that change the graph: factories that return a pure Graph -> Graph, one small file each."""
