"""Groups of tools, by the names of tools and their servers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from offload.engine.policy.tool_names import matches_any, words_of

# Globs of tool names, in lower case; server tools are named `server.tool` or `…__server__tool`.
BASH_TOOLS = ("bash", "*[._]bash", "shell", "execute_command")
TERMINAL_TOOLS = ("*terminal*",)
# Servers and tools that paginate their results.
NEVER_SERVERS = ("filesystem", "file_system", "fs", "editor", "browser", "playwright", "puppeteer")
NEVER_TOOLS = (
    "read", "reader", "readfile", "write", "writefile", "edit", "multiedit", "editor", "view",
    "file", "files", "filesystem", "directory", "directories", "ls", "cat", "glob", "grep",
    "browser", "playwright", "puppeteer",
)  # fmt: skip # one line per kind of tool
# Answers of the retrieval tools, from any server.
RETRIEVAL_TOOLS = ("context_*", "*[._]context_*")

_SERVER = re.compile(r"mcp__(?P<mcp>.+?)__|(?P<dotted>.+)\.|(?P<prefix>.+?)__")
_GLOB = re.compile(r"[*?\[]")


def full_name(tool_name: str, server_name: str | None) -> str:
    """Return the name of a tool together with its server."""
    return tool_name if server_name is None else f"{server_name}.{tool_name}"


@dataclass(frozen=True)
class ToolGroups:
    """The groups of tools; see `ContextRefs` for each argument."""

    bash_tools: tuple[str, ...] = BASH_TOOLS
    terminal_tools: tuple[str, ...] = TERMINAL_TOOLS
    never_servers: tuple[str, ...] = NEVER_SERVERS
    never_tools: tuple[str, ...] = NEVER_TOOLS

    def category(self, item_type: str, tool_name: str | None) -> str:
        """Return the category of an item: `Bash`, `Terminal`, `Tool` or `Message`."""
        return "Message" if item_type != "tool_result" else _category_of_tool(self, tool_name)

    def keeps(self, tool_name: str | None) -> bool:
        """Return whether a tool's results are kept: its server decides, if it has one."""
        if tool_name is None:
            return False
        if matches_any(tool_name, filter(_GLOB.search, self.never_tools)):
            return True
        if self.category("tool_result", tool_name) != "Tool":
            return False
        server = _SERVER.match(tool_name)
        if server is None:
            return _has_word(tool_name, self.never_tools)
        return _has_word(server[server.lastgroup or 0], self.never_servers)


@lru_cache(maxsize=1024)
def _category_of_tool(groups: ToolGroups, tool_name: str | None) -> str:
    """Return the category of a tool; cached, since a manifest asks for each of its files."""
    if matches_any(tool_name, groups.bash_tools):
        return "Bash"
    return "Terminal" if matches_any(tool_name, groups.terminal_tools) else "Tool"


def _has_word(name: str, entries: Iterable[str]) -> bool:
    words = _spelled(name)
    return any(_spelled(entry) in words for entry in entries if words_of(entry))


def _spelled(name: str) -> str:
    return f"_{'_'.join(words_of(name))}_"
