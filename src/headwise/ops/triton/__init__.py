"""What all Triton kernels share: the device, and the threshold of a row (`threshold.py`)."""
