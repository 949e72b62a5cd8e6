"""A Google ADK agent with one tool that returns a large result.

pip install 'offload[google-adk]'
GOOGLE_API_KEY=… python examples/google_adk_agent.py "Which file is the largest?"
"""

import asyncio
import sys
import sysconfig
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from offload.integrations.google_adk import AdkOffloadPlugin


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


async def main() -> None:
    """Run the agent once."""
    offloading = AdkOffloadPlugin("./context")
    agent = LlmAgent(name="librarian", model="gemini-2.5-flash", tools=[list_files])
    sessions = InMemorySessionService()
    runner = Runner(app=App(name="app", root_agent=agent, plugins=[offloading]), session_service=sessions)

    session = await sessions.create_session(app_name="app", user_id="alice")
    asked = types.Content(role="user", parts=[types.Part(text=" ".join(sys.argv[1:]))])
    async for event in runner.run_async(user_id="alice", session_id=session.id, new_message=asked):
        if event.is_final_response():
            print(event.content.parts[0].text)

    records = offloading.offloader(session).records()
    print(f"offloaded: {sum(record.chars for record in records):,} characters")


asyncio.run(main())
