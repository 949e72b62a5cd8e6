"""The command line: one file per command or group of commands, listed in `app.py`."""
