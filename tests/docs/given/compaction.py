"""Definitions for the code of docs/systems/compaction.md: ten rounds, each with a call of a tool."""

messages = [
    message
    for n in range(10)
    for message in (
        {"role": "user", "content": f"Give me report {n}."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"toolu_{n}", "name": "report", "input": {"n": n}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": f"line of report {n}\n" * 80}
            ],
        },
        {"role": "assistant", "content": f"Here is report {n}."},
    )
]
