"""The figures of the paper on I/O shepherding, one module for each kind of measurement."""
