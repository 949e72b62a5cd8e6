"""The command line: one file per command, built on the public names of `offload` alone."""
