"""The certificate: our FLOP counts of a model against PyTorch's counter, run on the library's own code.

Read in this order: `torch_counts` (public functions), `families` (particulars of each architecture),
`product_filing` (assigns each matrix product to a heading). Importing the first two imports neither torch nor
transformers.
"""
