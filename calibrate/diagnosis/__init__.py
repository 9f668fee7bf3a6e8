"""Where a measured run lost its time: recorded kernels against the operators of the predicted forward passes."""
