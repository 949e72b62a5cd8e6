"""Settings: one loader reads files, the environment and arguments; an offloader works with its options.

`loader` finds the values and their origins. `options` has what an `Offloader` works with, and `hooks` the
functions of the caller in it. The loader needs pydantic, which takes long to load, so nothing is imported
here.
"""
