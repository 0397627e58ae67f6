"""Networks as straight code: one list of NumPy calls for a step, made from the network itself."""
