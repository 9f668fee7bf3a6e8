"""What changes which forward passes are run: speculation, how many drafted tokens a model accepts, trees of them."""
