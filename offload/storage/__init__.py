"""Storage: the contract of a store, its keys, how a URL is opened, and stores that wrap another."""
