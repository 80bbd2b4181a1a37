"""Bad input, damaged and hostile stores, injected faults, the soak."""
