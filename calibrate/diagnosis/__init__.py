"""Diagnosis of a measured run: recorded kernels against the operators of the predicted forward passes."""
