"""Training losses over an output layer."""
