"""A process that forks while another of its threads is inside a call: the child goes on by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import prepared
import pytest

# The thread waits inside a call of the store; the child uses the same offloader, which the thread is in.
HELD = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
import os, signal, sys, threading
from offload import Offloader, open_store
from offload.storage.store import OneByOne
from offload.storage.wrappers import CachingStore

url, call, verb = sys.argv[1:4]
parent, is_inside, may_go_on = os.getpid(), threading.Event(), threading.Event()
is_armed = threading.Event()


class Store:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def hold(self, name):
        if name == verb and is_armed.is_set() and os.getpid() == parent:
            is_inside.set()
            may_go_on.wait(60)

    def put(self, key, data, *, overwrite=False):
        self.hold("put")
        self.inner.put(key, data, overwrite=overwrite)

    put_many = OneByOne.put_many

    def get(self, key, *, start=0, end=None):
        self.hold("get")
        return self.inner.get(key, start=start, end=end)

    def keys(self, prefix="", *, after=""):
        self.hold("keys")
        return self.inner.keys(prefix, after=after)

    def delete(self, key):
        self.inner.delete(key)


LOG = "a line of a log that is long enough to leave\\n" * 400


def result(number):
    block = {"type": "tool_result", "tool_use_id": f"c{number}", "content": f"{LOG}{number}"}
    return {"role": "user", "content": [block]}


off = Offloader(CachingStore(Store(open_store(url))), session="s")
off.events.subscribe(lambda event: None)
first = off.offload([result(0)])
ref = first.records[0].ref
CALLS = {
    "offload": lambda n: off.offload([result(0), result(n)]),
    "offload_text": lambda n: off.offload_text(f"{LOG}{n}"),
    "read": lambda n: Offloader(off.store, session="s").tools.read(ref),
    "records": lambda n: off.records(),
}


def use():
    for n, used in enumerate(CALLS.values()):
        used(10 + n)
    out = off.offload([result(0), result(20)])
    assert not out.errors, out.errors
    assert out.messages[0] == first.messages[0]
    assert off.restore(out.messages) == [result(0), result(20)]
    assert "a line" in off.tools.read(ref)
    import asyncio
    assert asyncio.run(off.aoffload([result(0), result(30)])).records
    assert off.fork(f"child-{os.getpid()}").records()


import asyncio
asyncio.run(off.aoffload([result(0)]))
is_armed.set()
thread = threading.Thread(target=CALLS[call], args=(1,))
thread.start()
assert is_inside.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        use()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
status = os.waitpid(child, 0)[1]
is_armed.clear()
may_go_on.set()
thread.join()
use()
sys.exit(os.waitstatus_to_exitcode(status))
"""


VERBS = {"offload": "put", "offload_text": "put", "read": "get", "records": "keys"}


@pytest.mark.parametrize(
    ("call", "verb", "scheme"),
    [
        pytest.param(call, verb, scheme, marks=() if place % 2 == other else pytest.mark.slow)
        for place, (call, verb) in enumerate(VERBS.items())
        for other, scheme in enumerate(("file", "memory"))
    ],
)
def test_a_child_goes_on_while_a_thread_of_its_parent_is_held_in_the_store(
    tmp_path: Path, call: str, verb: str, scheme: str
) -> None:
    url = f"file://{tmp_path}" if scheme == "file" else "memory://"

    ran = prepared.run(HELD, url, call, verb)

    assert ran.stderr == ""
    assert ran.returncode == 0


# Threads that never rest, so that a fork falls into any moment of theirs.
BUSY = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
import os, signal, sys, threading
from offload import Offloader

sys.setswitchinterval(1e-5)
off = Offloader("memory://", session="s")
off.events.subscribe(lambda event: None)
LOG = "a line of a log that is long enough to leave\\n" * 200
text = off.offload_text(LOG)
ref = off.records()[0].ref
is_over = threading.Event()


def work(number):
    turn = 0
    while not is_over.is_set():
        turn += 1
        off.offload_text(f"{LOG}{number} {turn % 50}")
        off.tools.read(ref, limit=20)
        off.tools.list(limit=2)
        off.search(str(turn))
        off.stats()


threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for thread in threads:
    thread.start()
failed = 0
for n in range(6):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        is_over.set()
        off.offload_text(f"{LOG}child {n}")
        off.tools.read(ref, limit=20)
        off.search("child")
        off.offload([{"role": "tool", "tool_call_id": "c", "content": f"{LOG} {n}"}])
        off.stats()
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
is_over.set()
for thread in threads:
    thread.join()
sys.exit(failed)
"""


def test_a_child_goes_on_whatever_the_threads_of_its_parent_were_at() -> None:
    ran = prepared.run(BUSY)

    assert ran.stderr == ""
    assert ran.returncode == 0


# A thread that imports a module at its first use, held there until a fork begins.
IMPORTING = """
import os, signal, sys, threading
from offload import Offloader

module, call = sys.argv[1:]
off = Offloader("memory://", session="s")
is_inside, is_forking = threading.Event(), threading.Event()


class Finder:
    def find_spec(name, path, target=None):
        if name == module:
            is_inside.set()
            is_forking.wait(60)
            threading.Event().wait(0.05)


sys.meta_path.insert(0, Finder)
# The last one that is registered runs first.
os.register_at_fork(before=is_forking.set)
use = eval(f"lambda: {call}")
thread = threading.Thread(target=use)
thread.start()
assert is_inside.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(20)
    use()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("sqlite3", "off.search('word')"),
        ("offload.reading.evidence.session", "off.evidence('host_a')"),
        ("re2", "off.tools.grep('w+', mode='regex')"),
        ("offload.reading.tables", "off.offload_text('a line of a log that is long enough\\n' * 400)"),
    ],
)
def test_a_fork_waits_for_a_thread_that_imports_a_module(module: str, call: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", IMPORTING, module, call]

    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=90)

    assert ran.stderr == ""
    assert ran.returncode == 0


# A hook that forks: the child goes on inside the turn, as the parent does.
FORKING = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
import os, signal, sys
from offload import Offloader

def lets_go(item):
    global child
    if child is None:
        child = os.fork()
        signal.alarm(60)
    return True

child = None
off = Offloader("memory://", session="s", should_offload=lets_go)
message = {"role": "tool", "tool_call_id": "c", "content": "a line of a log that is long enough\\n" * 400}
out = off.offload([message])
again = off.offload([message, {**message, "tool_call_id": "d"}])
assert out.messages[0]["content"].startswith("[Offloaded:") and len(again.records) == 2
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_hook_may_fork_the_process() -> None:
    ran = prepared.run(FORKING)

    assert ran.stderr == ""
    assert ran.returncode == 0
