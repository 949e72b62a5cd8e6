"""A process without what POSIX has and Windows has not; it then uses the library.

Started with a folder as its argument, it prints a line for each part that worked. The modules and attributes
are absent before the library is imported; the packages that it uses are imported before, since on this system
they need them.
"""

from __future__ import annotations

import errno
import os
import pkgutil
import shutil
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_OS = (
    *("chown", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getpgid"),
    *("getuid", "killpg", "lchown", "mkfifo", "openpty", "pread", "pwrite", "register_at_fork", "setsid"),
    *("statvfs", "sync", "sysconf", "uname"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_TMPFILE", "WNOHANG"),
)
OF_SIGNAL = ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "alarm", "pthread_kill", "setitimer")
WITH_HANDLES = (
    *("access", "chmod", "link", "mkdir", "open", "readlink", "rename", "replace", "rmdir", "stat"),
    *("symlink", "unlink", "utime"),
)
HANDLES = {"dir_fd", "src_dir_fd", "dst_dir_fd"}
# They take seconds to load; the modules that need them import the standard library first.
SLOW = ("anthropic", "hypothesis", "openai")
PACKAGES = ("asyncio", "platformdirs", "subprocess", "tempfile")


def remove_posix() -> None:
    """Remove what Windows has not, and refuse what it refuses."""
    for name in PACKAGES:
        import_module(name)
    for module in (*MODULES, *SLOW):
        sys.modules[module] = None  # type: ignore[assignment]  # the documented way to make an import fail
    for place, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            delattr(place, name)
    for name in WITH_HANDLES:
        setattr(os, name, _without_handles(getattr(os, name)))
    os.supports_dir_fd.clear()
    os.supports_fd.clear()
    # Python 3.14 looks at the second alone.
    vars(shutil).update(_use_fd_functions=False, _rmtree_impl=vars(shutil).get("_rmtree_unsafe"))


def _without_handles(call: Callable[..., Any]) -> Callable[..., Any]:
    def by_path(*arguments: Any, **options: Any) -> Any:
        if any(options.get(name) is not None for name in HANDLES):
            raise NotImplementedError(f"{call.__name__}: dir_fd unavailable on this platform")
        if call.__name__ == "link" and not options.get("follow_symlinks", True):
            raise NotImplementedError("link: follow_symlinks unavailable on this platform")
        if call.__name__ == "open" and os.path.isdir(arguments[0]):  # noqa: PTH112  # it may be a handle
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), arguments[0])
        return call(*arguments, **options)

    return by_path


def imports() -> None:
    """Import every module of the library; those of frameworks may lack their package."""
    import offload  # noqa: PLC0415
    import offload_backends  # noqa: PLC0415

    for package in (offload, offload_backends):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                _import(found.name)


def _import(name: str) -> None:
    from offload.errors import MissingExtraError  # noqa: PLC0415

    try:
        import_module(name)
    except (MissingExtraError, ModuleNotFoundError) as error:
        missing = error.__cause__ if isinstance(error, MissingExtraError) else error
        assert isinstance(missing, ModuleNotFoundError), name
        assert missing.name not in MODULES, name


def session(url: str) -> None:
    """Offload and restore a conversation, and read it with every tool."""
    from offload import Offloader  # noqa: PLC0415

    table = "a,b\n" + "".join(f"{n},x{n}\n" for n in range(5000))
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": table}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    off = Offloader(url, session="one")
    done = off.offload(messages)
    assert done.errors == []
    [record] = done.records
    assert Offloader(url, session="one").restore(done.messages) == messages
    assert "12497500" in off.tools.query(record.ref, "SELECT SUM(a) FROM t")
    assert "x4999" in off.tools.tail(record.ref)
    assert "x77\n" in off.tools.grep("x77", record.ref)
    assert "1,x1" in off.tools.read(record.ref)
    assert record.ref in off.tools.list()
    off.offload_text(table.replace("x77\n", "y77\n"), tool_name="Bash", tool_use_id="t2")
    assert "y77" in off.tools.diff(*(info.ref for info in off.records()))
    with off.open_sink(tool_name="Bash") as sink:
        sink.write(table * 3)
    assert sink.error is None
    assert off.verify() == []


def commands(url: str) -> None:
    """Run the command line."""
    from offload.__main__ import main  # noqa: PLC0415

    for line in ("demo", "ls", "ls --session demo", "show last", "grep argparse --session demo"):
        _run(main, [*line.split(), "--store", url])
    _run(main, ["doctor", url])
    _run(main, ["--help"])


def _run(main: Callable[[], None], arguments: list[str]) -> None:
    sys.argv, code = ["offload", *arguments], None
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    assert not code, arguments


def presets(folder: Path) -> None:
    """Write and read the layouts of the presets."""
    from offload.agent.presets.context_fs import ContextFileSystem  # noqa: PLC0415
    from offload.agent.presets.context_refs import ContextRefs  # noqa: PLC0415
    from offload.agent.presets.tool_results import offload_tool_results  # noqa: PLC0415

    messages = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": name * 200}]}
        for name in ("t1", "t2")
    ]
    for _ in range(2):
        done = offload_tool_results(messages, folder / "results")
        assert [Path(file).read_text(encoding="utf-8") for file in done.files] == ["t1" * 200, "t2" * 200]

    fs = ContextFileSystem(folder / "documents", "one", offload_token_threshold=50)
    replaced = fs.offload([*messages, {"role": "assistant", "content": "Seen."}])
    assert replaced.errors == []
    assert [document.path for document in fs.history()] == [
        f"tool_result/call_{info.ref}.json" for info in replaced.records
    ]
    assert ContextFileSystem(folder / "documents", "one").restore(replaced.messages[:2]) == messages

    refs = ContextRefs(folder / "refs", "one")
    assert "output in context" in refs.tool_output("a line\n" * 2000, tool_name="Bash")
    assert len(refs.offloader.records()) == 1


def main(folder: Path) -> None:
    """Run each part, and print its name to stderr."""
    url = str(folder / "store")
    remove_posix()
    for part, *arguments in ((imports,), (session, url), (commands, url), (presets, folder)):
        part(*arguments)
        sys.stderr.write(f"works: {part.__name__}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
