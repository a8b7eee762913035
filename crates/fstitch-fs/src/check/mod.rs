//! Checking and repairing.
