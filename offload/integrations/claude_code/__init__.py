"""Claude Code: a hook that offloads its tool results, and a plugin with the tools that read them.

Nothing is imported here: a hook that runs as a command must start fast.
"""
