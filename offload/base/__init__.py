"""The base: texts, patterns, tokens, threads, events and schemas; it knows neither records nor messages."""
