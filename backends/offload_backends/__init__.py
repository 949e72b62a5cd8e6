"""First-party stores, found by their entry points in the group `offload.backends`."""
