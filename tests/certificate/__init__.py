"""The certificate: our FLOP counts of a model against PyTorch's own counter, run on the library's own code.

Read in this order: `torch_counts` (what is asked), `families` (what is particular about each architecture),
`product_filing` (how each matrix product finds its heading). Importing the first two imports neither torch nor
transformers.
"""
