"""`offload wrap`: a client behind a gateway of its own, from its first request to its exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import prepared
import pytest
from gateways import REPLY, USAGE, body_of, providing, turns

from offload import Offloader
from offload.cli import wrap
from offload.reading.timeline import Timeline
from offload.records import index
from offload.replay import Account, pairs_in

# Each ends a program that does not handle it.
SIGNALS = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGALRM", "SIGRTMIN")
    if hasattr(signal, name)
]
# What a client does: it sends requests of more and more turns, and writes down how it was started.
CLIENT = """#!{python}
import json, os, sys, urllib.request
url = os.environ.get("ANTHROPIC_BASE_URL") or os.environ.get("OPENAI_BASE_URL")
names = ("OPENCODE_CONFIG_CONTENT", "GOOGLE_GEMINI_BASE_URL", "GEMINI_CLI_SYSTEM_DEFAULTS_PATH")
print(json.dumps([sys.argv[1:], url, *map(os.environ.get, names)]), flush=True)
for body in json.load(open({bodies!r})):
    headers = {{"content-type": "application/json"}}
    request = urllib.request.Request(url + "/v1/messages", body.encode(), headers)
    urllib.request.urlopen(request).read()
{end}
"""
BODIES = [body_of(turns(count)).decode() for count in range(1, 12)]


@pytest.fixture
def upstream():
    with providing() as provider:
        yield provider


@pytest.fixture
def project(tmp_path):
    for name in ("bin", "home", "project"):
        (tmp_path / name).mkdir()
    return tmp_path / "project"


def client(project, name="claude", bodies=BODIES, end="sys.exit(7)"):
    """Put a client on the path."""
    sent = project.parent / "bodies.json"
    sent.write_text(json.dumps(bodies))
    program = project.parent / "bin" / name
    program.write_text(CLIENT.format(python=sys.executable, bodies=str(sent), end=end))
    program.chmod(0o755)


# A job of the background ignores SIGINT, and so do the programs that it starts.
WRAP = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from offload.__main__ import main
main()
"""


def started(project, *arguments, **environ):
    folder = project.parent
    known = {
        name: value for name, value in os.environ.items() if not name.startswith(("OFFLOAD", "ANTHROPIC"))
    }
    environ = known | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "OFFLOAD_STORE": str(folder / "store"),
        **environ,
    }
    return prepared.start(WRAP, "wrap", *arguments, folder=project, environ=environ)


def run(project, *arguments, **environ):
    """Return the exit code, what the client printed, and the lines on stderr."""
    with started(project, *arguments, **environ) as process:
        out, err = process.communicate()
    return process.returncode, out, err.splitlines()


def test_a_client_works_through_the_gateway_and_one_line_says_what_was_kept_out(project, upstream):
    client(project)
    code, out, err = run(project, "--upstream", upstream.url, "claude", "-p", "go")
    arguments, url, *_ = json.loads(out)

    assert code == 7
    assert url.startswith("http://127.0.0.1:")
    assert arguments == ["-p", "go"]
    assert len(upstream.seen) == len(BODIES)
    assert [len(err), "11 requests, " in err[0], "tokens kept out" in err[0]] == [1, True, True]
    assert "offload log" in err[0]
    store = Offloader(project.parent / "store").store
    [timeline] = {key.key.split("/")[1] for key in store.keys("j/")}
    assert len(Timeline(store, timeline)) == len(BODIES)
    assert min(index.sessions(store), key=len).startswith("project-")


def test_shadow_requests_are_counted_in_a_line_of_their_own(project, upstream):
    call = {"type": "tool_use", "id": "toolu_x", "name": "Bash", "input": {"command": "make"}}
    usage = USAGE | {"output_tokens": 9}
    reply = REPLY | {"content": [call], "stop_reason": "tool_use", "usage": usage}
    upstream.answer = lambda provider: provider.say(200, json.dumps(reply).encode())
    status = 'json.load(urllib.request.urlopen(url + "/offload/status"))'
    client(project, end=f'while not {status}["shadow"]["pairs"]: pass')
    options = ("--upstream", upstream.url, "--shadow", "1", "--shadow-budget", "5USD")
    _, _, err = run(project, *options, "claude")

    found = [*pairs_in(Offloader(project.parent / "store").store)]
    count, cost = sum(pair.same is not None for pair in found), sum(pair.dollars for pair in found)
    assert count > 0
    assert err[0].startswith(f"offload: shadow requests: {count} pairs for ${cost:,.2f} of $5.00")
    assert err[0].endswith("See them: offload shadow")
    assert len(upstream.seen) > len(BODIES)


def test_the_line_has_what_the_saving_cost_in_all_conversations():
    status = {"requests": 9, "warnings": [], "passed": {}, "tokens_removed": 0}
    one = Account(
        {}, {}, 5, 2, 7, 1, 1.0, 3.0, 1234, "m", is_assumed=False, is_priced=True, is_counted=True, models=1
    )
    two = replace(one, extra_requests=1, quotes=3, quotes_gone=0)

    [line] = wrap._summary(status, [one, two])
    [unpriced] = wrap._summary(status, [replace(one, is_priced=False)])
    [more] = wrap._summary(status, [replace(one, kept_out=-34, is_priced=False)])

    assert line.startswith(
        "10 requests, 2,468 tokens kept out, about $4.00 of $6.00 input saved, 3 extra requests, "
        "1 of 10 quotes in edits gone. "
    )
    assert "5 requests, 1,234 tokens kept out, 2 extra requests, 1 of 7 quotes in edits gone. " in unpriced
    assert more.startswith("5 requests, 34 tokens added, 2 extra requests")


def test_the_url_that_the_client_had_is_the_provider_and_a_short_conversation_saves_nothing(
    project, upstream
):
    client(project, bodies=BODIES[:1])
    code, _, [line] = run(project, "claude", ANTHROPIC_BASE_URL=upstream.url)
    assert [code, len(upstream.seen)] == [7, 1]
    assert line.startswith("offload: 1 request, nothing was large or old enough to offload.")


def test_codex_opencode_and_gemini_get_the_gateway_in_their_settings_of_this_run(project):
    client(project, "codex", bodies=[])
    arguments = json.loads(run(project, "codex", "exec", "go")[1])[0]
    assert arguments[:4:2] == ["-c", "-c"]
    assert arguments[3].startswith('model_providers.offload={name="OpenAI", base_url="http://127.0.0.1:')
    assert arguments[-2:] == ["exec", "go"]

    client(project, "opencode", bodies=[])
    config = json.loads(json.loads(run(project, "opencode")[1])[2])
    assert config["provider"]["anthropic"]["options"]["baseURL"].startswith("http://127.0.0.1:")

    client(project, "gemini", bodies=[])
    url, login = json.loads(run(project, "gemini")[1])[3:]
    assert url.startswith("http://127.0.0.1:")
    assert json.loads(Path(login).read_text())["security"]["auth"]["selectedType"] == "gemini-api-key"


# By program and provider, the ends of its URLs by their variables.
EVERY = {"ANTHROPIC_BASE_URL": "", "GOOGLE_GEMINI_BASE_URL": "", "OPENAI_API_BASE": "", "OPENAI_BASE_URL": ""}
DEEPSEEK = "https://api.deepseek.com/anthropic"


@pytest.mark.parametrize(
    ("program", "upstream", "ends"),
    [
        ("mine", "https://api.test", EVERY | {"OPENAI_API_BASE": "/v1", "OPENAI_BASE_URL": "/v1"}),
        ("mine", "https://api.test/v4", EVERY | {"OPENAI_API_BASE": "/v4", "OPENAI_BASE_URL": "/v4"}),
        ("mine", DEEPSEEK, {"ANTHROPIC_BASE_URL": ""}),
        ("mine", f"{DEEPSEEK}/v1/", {"ANTHROPIC_BASE_URL": ""}),
        ("mine", "https://api.anthropic.com", {"ANTHROPIC_BASE_URL": ""}),
        ("goose", "https://api.test/v1", {"ANTHROPIC_HOST": "", "OPENAI_HOST": ""}),
    ],
)
def test_a_client_gets_the_base_urls_of_the_apis_that_it_may_use(program, upstream, ends):
    environ = wrap._client(program, upstream).start("http://gateway").environ
    assert environ == {name: f"http://gateway{end}" for name, end in ends.items()}


@pytest.mark.parametrize(
    ("upstream", "name"),
    [
        ("https://api.openai.com/v1", "OpenAI"),
        ("https://eu.api.openai.com/v1", "OpenAI"),
        ("https://openrouter.ai/api/v1", "openrouter.ai"),
        ("https://r.openai.azure.com/openai/v1", "r.openai.azure.com"),
        ("https://notopenai.com/v1", "notopenai.com"),
    ],
)
def test_codex_takes_no_other_provider_for_openai(monkeypatch, upstream, name):
    monkeypatch.setenv("OPENAI_BASE_URL", upstream)
    for given in (upstream, None):
        assert (
            f'{{name="{name}", base_url="http://gateway/v1", '
            in (wrap._client("codex", given).start("http://gateway").arguments[-1])
        )


@pytest.mark.parametrize(
    ("upstream", "urls"),
    [
        ("https://api.test", {"anthropic": "/v1", "google": "/v1beta", "openai": "/v1"}),
        ("https://api.openai.com/v1", {"openai": "/v1"}),
        ("https://openrouter.ai/api/v1", {"openrouter": "/v1"}),
        ("https://generativelanguage.googleapis.com", {"google": "/v1beta"}),
        (DEEPSEEK, {"anthropic": "/v1"}),
        (None, {"anthropic": "/v1"}),
    ],
)
def test_the_provider_of_opencode_is_that_of_the_url(monkeypatch, upstream, urls):
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    start = wrap._client("opencode", upstream).start("http://gateway")
    found = json.loads(start.environ["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert {name: one["options"]["baseURL"] for name, one in found.items()} == {
        name: f"http://gateway{end}" for name, end in urls.items()
    }


@pytest.mark.parametrize(
    ("upstream", "given", "kind", "end"),
    [
        ("https://api.test/v1", None, "openai", "/v1"),
        ("https://api.test", "anthropic", "anthropic", ""),
        (DEEPSEEK, None, "anthropic", ""),
    ],
)
def test_copilot_is_told_the_api_of_its_provider(monkeypatch, upstream, given, kind, end):
    monkeypatch.delenv("COPILOT_PROVIDER_TYPE", raising=False)
    if given is not None:
        monkeypatch.setenv("COPILOT_PROVIDER_TYPE", given)
    names = {"COPILOT_PROVIDER_BASE_URL": f"http://gateway{end}", "COPILOT_PROVIDER_TYPE": kind}
    assert wrap._client("copilot", upstream).start("http://gateway").environ == names


@pytest.mark.parametrize(
    ("program", "variables", "said"),
    [
        ("claude", {"CLAUDE_CODE_USE_BEDROCK": "1"}, "CLAUDE_CODE_USE_BEDROCK is set"),
        ("claude", {"CLAUDE_CODE_USE_BEDROCK": "0"}, None),
        ("codex", {"OPENAI_API_KEY": ""}, "OPENAI_API_KEY is not set"),
        ("codex", {"OPENAI_API_KEY": "k"}, None),
        ("gemini", {"GEMINI_API_KEY": ""}, "GEMINI_API_KEY is not set"),
    ],
)
def test_that_no_request_can_come_is_said_before_the_client_starts(
    project, upstream, program, variables, said
):
    client(project, program, end="print('waits', flush=True)\nimport time\ntime.sleep(60)", bodies=[])
    with started(project, "--upstream", upstream.url, program, **variables) as process:
        assert process.stdout.readline()
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    lines = err.splitlines()
    assert len(lines) == (1 if said is None else 2)
    assert said is None or (said in lines[0] and "no request comes" in lines[0])


def test_a_provider_without_an_answer_is_said_before_the_client_starts(project):
    client(project, end="sys.stderr.write('the client')", bodies=[])
    _, _, err = run(project, "--upstream", "http://127.0.0.1:9", "claude")
    assert "http://127.0.0.1:9 does not answer" in err[0]
    assert err[1].startswith("the client")


def test_system_defaults_of_gemini_cli_are_not_hidden(monkeypatch, tmp_path):
    monkeypatch.setattr(wrap, "_OF_SYSTEM", tmp_path / "system-defaults.json")
    monkeypatch.delenv("GEMINI_CLI_SYSTEM_DEFAULTS_PATH", raising=False)
    names = [sorted(wrap._gemini("", "http://x").environ)]
    (tmp_path / "system-defaults.json").write_text("{}")
    names.append(sorted(wrap._gemini("", "http://x").environ))

    url = "GOOGLE_GEMINI_BASE_URL"
    assert names == [["GEMINI_CLI_SYSTEM_DEFAULTS_PATH", url], [url]]


@pytest.mark.parametrize("program", ["mine", "goose"])
def test_any_other_client_needs_its_provider(project, program):
    client(project, program, bodies=[])
    code, out, err = run(project, program)
    assert [code, out] == [2, ""]
    assert "--upstream" in " ".join(err)


@pytest.mark.parametrize(
    ("upstream", "end"),
    [
        ("https://api.test", "/v1"),
        ("https://api.test/api/v1/", "/v1"),
        ("https://api.test/v1beta/openai", "/v1beta/openai"),
        ("https://api.test/paas/v4", "/v4"),
        ("https://api.test/v1/prefix", "/v1"),
    ],
)
def test_a_base_url_of_openai_has_the_version_of_the_provider(upstream, end):
    for program in ("mine", "codex"):
        assert f"http://gateway{end}" in str(wrap._client(program, upstream).start("http://gateway"))


@pytest.mark.parametrize(
    ("excepted", "given"),
    [
        ({}, {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}),
        ({"NO_PROXY": "a.test"}, {"no_proxy": "a.test,127.0.0.1", "NO_PROXY": "a.test,127.0.0.1"}),
        ({"no_proxy": "*"}, {}),
    ],
)
def test_no_proxy_comes_between_a_client_and_its_gateway(project, upstream, excepted, given):
    client(project, bodies=BODIES[:1])
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    code, *_ = run(project, "--upstream", upstream.url, "claude", **proxies, **excepted)
    assert [code, len(upstream.seen)] == [7, 1]
    assert wrap._without_proxy(excepted) == given


def test_conversations_are_not_kept_if_that_is_asked(project, upstream):
    client(project)
    _, _, [line] = run(project, "--upstream", upstream.url, "--without-journal", "claude")

    assert line.endswith(" tokens kept out. See them: offload ls, offload serve")
    assert not (project.parent / "store" / "j").exists()
    assert (project.parent / "store" / "r").is_dir()


def test_a_client_that_sends_nothing_through_it_is_told_so(project, upstream):
    client(project, bodies=[])
    _, _, err = run(project, "--upstream", upstream.url, "claude")
    assert err == ["offload: no request came through the gateway: does the client use another URL?"]


def test_a_store_that_fails_lets_the_client_work_and_is_said_at_the_end(project, upstream):
    client(project)
    (project.parent / "store").write_text("no folder")
    code, _, err = run(project, "--upstream", upstream.url, "claude")
    assert [code, len(upstream.seen)] == [7, len(BODIES)]
    assert "store" in err[0]
    assert "11 requests" in err[-1]


def test_a_program_that_is_not_there_is_said_as_a_shell_does(project):
    code, out, err = run(project, "--upstream", "http://127.0.0.1:9", "no-such-client")
    assert [code, out] == [127, ""]
    assert err == ["offload: no program 'no-such-client'"]


def test_a_store_that_ends_with_the_command_is_refused_before_the_client_starts(project):
    client(project)
    code, out, err = run(project, "claude", OFFLOAD_STORE="memory://x")
    assert [code, out] == [2, ""]
    assert "memory://x" in " ".join(err)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_reaches_the_client_and_the_timeline_is_written(project, upstream, number):
    client(project, end="print('waits', flush=True)\nimport time\ntime.sleep(60)")
    with started(project, "--upstream", upstream.url, "claude") as process:
        assert process.stdout.readline()
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == 128 + number
    assert "11 requests" in err
    assert [*(project.parent / "store" / "j").glob("*/*")]


def test_the_exit_code_is_that_of_a_client_that_handles_a_signal(project, upstream):
    end = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
print("waits", flush=True)
time.sleep(60)"""
    client(project, bodies=[], end=end)
    with started(project, "--upstream", upstream.url, "claude") as process:
        assert process.stdout.readline()
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGUSR1)
        process.communicate()
    assert process.returncode == 9


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system shows no variables")
def test_a_process_that_the_client_leaves_behind_is_told(project, upstream):
    end = """
import subprocess
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
print(left.pid, flush=True)"""
    client(project, bodies=BODIES[:1], end=end)
    _, out, err = run(project, "--upstream", upstream.url, "claude")
    left = int(out.splitlines()[-1])
    os.kill(left, signal.SIGKILL)
    assert err[0] == f"offload: the client left processes that have no gateway now: {left}"
    assert err[1].startswith("offload: 1 request")


def test_a_gateway_that_is_killed_leaves_the_client_with_an_error_at_once(project, upstream):
    end = """
try:
    import time; print("waits", flush=True); time.sleep(1)
    urllib.request.urlopen(request).read()
except OSError as error:
    open("said", "w").write(type(error).__name__)
"""
    client(project, end=end)
    with started(project, "--upstream", upstream.url, "claude") as process:
        process.stdout.readline()
        assert process.stdout.readline() == "waits\n"
        process.kill()
        process.communicate()
    said = project / "said"
    deadline = time.monotonic() + 20
    while not said.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert said.read_text() == "URLError"


def test_requests_that_pass_unchanged_are_said_with_the_reason(project, upstream):
    asked = {"messages": [{"role": "user", "content": "What is new?"}], "tools": []}
    client(project, bodies=[json.dumps({**json.loads(BODIES[0]), **asked})])
    _, _, [line] = run(project, "--upstream", upstream.url, "claude")
    assert line.startswith("offload: 1 request, 1 passed unchanged: without tools or messages.")
