"""The provider of the benchmarks: its prompt caches keep the published rules."""

import http.client
import json
from contextlib import closing

import pytest
from _provider import AnthropicCache, AutomaticCache, BadRequestError, BreakpointCache, Provider, serving
from kit.conversation import from_user

MARK = {"type": "ephemeral"}
LONG = "x" * 3600 * 2  # 2,000 tokens


def text(number, chars=3600):
    return {"type": "text", "text": f"{number} {'x' * chars}"}


def marked(block, **fields):
    return {**block, "cache_control": {**MARK, **fields}}


def of_blocks(*blocks):
    return {"model": "claude", "messages": [{"role": "user", "content": list(blocks)}]}


def tokens(charge):
    return tuple(round(part / 1000) for part in (charge.read, charge.written, charge.plain))


def test_a_request_reads_what_the_last_one_marked_and_writes_what_is_new():
    cache = AnthropicCache()
    blocks = [text(n) for n in range(6)]

    first = cache.charge(of_blocks(*blocks[:3], marked(blocks[3])), 0)
    second = cache.charge(of_blocks(*blocks[:5], marked(blocks[5])), 1)

    assert tokens(first) == (0, 4, 0)
    assert tokens(second) == (4, 2, 0)
    assert first.cost == pytest.approx(1.25 * first.tokens)
    assert second.cost == pytest.approx(0.1 * second.read + 1.25 * second.written)


def test_the_example_of_the_lookback_misses_by_one_block():
    cache = AnthropicCache()
    blocks = [text(n) for n in range(1, 37)]

    def send(count):
        return cache.charge(of_blocks(*blocks[: count - 1], marked(blocks[count - 1])), 0)

    assert [tokens(send(count))[0] for count in (10, 15)] == [0, 10]
    assert tokens(send(35))[0] == 0
    cache.forget()
    send(16)
    assert tokens(send(35))[0] == 16
    # A second mark begins a second lookback.
    cache.forget()
    send(15)
    both = of_blocks(*blocks[:14], marked(blocks[14]), *blocks[15:34], marked(blocks[34]))
    assert tokens(cache.charge(both, 0)) == (15, 20, 0)


@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_a_run_of_calls_or_results_is_one_position(kind):
    cache = AnthropicCache()
    run = [{"type": kind, "id": str(n), "content": "y" * 3600} for n in range(30)]
    cache.charge(of_blocks(marked(text(0, 7200))), 0)

    assert tokens(cache.charge(of_blocks(text(0, 7200), *run, marked(text(1))), 0))[0] == 2


def test_a_changed_byte_of_an_old_block_loses_all_behind_it():
    cache = AnthropicCache()
    system = {"system": [marked({"type": "text", "text": LONG})]}
    cache.charge({**system, **of_blocks(text(1), text(2), marked(text(3)))}, 0)

    changed = cache.charge({**system, **of_blocks(text(9), text(2), text(3), marked(text(4)))}, 0)

    assert tokens(changed) == (2, 4, 0)


@pytest.mark.parametrize(("ttl", "seconds"), [("5m", 300), ("1h", 3600)])
def test_an_entry_lives_for_its_time_after_its_last_use(ttl, seconds):
    cache = AnthropicCache()
    request = of_blocks(marked(text(1, 7200), ttl=ttl))

    read = [tokens(cache.charge(request, now))[0] for now in (0, seconds, 2 * seconds, 3 * seconds + 1)]

    assert read == [0, 2, 2, 0]


def test_writing_for_an_hour_costs_twice_the_price():
    charge = AnthropicCache().charge(of_blocks(marked(text(1, 7200), ttl="1h"), marked(text(2))), 0)

    assert (round(charge.written_1h / 1000), round(charge.written / 1000)) == (2, 1)
    assert charge.cost == pytest.approx(2 * charge.written_1h + 1.25 * charge.written)


def test_a_short_prompt_and_one_without_marks_are_not_cached_and_five_marks_are_refused():
    cache = AnthropicCache()
    short, plain = of_blocks(marked(text(1))), of_blocks(text(1), text(2))

    assert [tokens(cache.charge(request, 0)) for request in (short, short)] == [(0, 0, 1)] * 2
    assert [tokens(cache.charge(request, 0)) for request in (plain, plain)] == [(0, 0, 2)] * 2
    with pytest.raises(BadRequestError, match="4 blocks"):
        cache.charge(of_blocks(*(marked(text(n)) for n in range(5))), 0)


def test_older_models_of_openai_cache_steps_of_128_tokens_from_1024_on():
    cache = AutomaticCache()
    chat = {"model": "gpt-5", "messages": [{"role": "user", "content": LONG}]}

    first = cache.charge(chat, 0)
    longer = {**chat, "messages": [*chat["messages"], {"role": "user", "content": "y" * 999}]}
    second = cache.charge(longer, 1)

    assert first.read == 0
    assert second.read % 128 == 0
    assert 2000 - 128 <= second.read <= 2000 + 128
    assert second.cost == pytest.approx(second.plain + 0.1 * second.read)
    short = {"model": "gpt-5", "messages": [{"role": "user", "content": "x" * 3600}]}
    assert [cache.charge(short, 0).read for _ in range(2)] == [0, 0]


def test_newer_models_of_openai_cache_the_ends_of_messages():
    cache = BreakpointCache()
    turns = [{"role": "system", "content": LONG}, {"role": "user", "content": LONG}]
    for number in range(85):
        turns.append({"role": "assistant", "content": "x" * 360})
        turns.append({"role": "tool", "tool_call_id": str(number), "content": "x" * 3240})

    first = cache.charge({"messages": turns[:2]}, 0)
    next_one = cache.charge({"messages": turns[:4]}, 1)
    far = cache.charge({"messages": turns[:4] + turns[4:]}, 2)

    assert (first.read, round(first.written / 1000)) == (0, 4)
    assert (round(next_one.read / 1000), round(next_one.written / 1000)) == (4, 1)
    assert round(far.read / 1000) == 0
    assert cache.charge({"messages": turns}, 1802).read > 0
    assert cache.charge({"messages": turns}, 3604).read == 0


@pytest.mark.parametrize(
    ("path", "request_body", "fields"),
    [
        ("/v1/messages", of_blocks(marked(text(1, 7200))), ("usage", "cache_creation_input_tokens")),
        ("/v1/chat/completions", {"messages": [from_user("x")]}, ("usage", "prompt_tokens")),
        ("/v1/responses", {"input": "x"}, ("usage", "input_tokens")),
    ],
)
def test_an_answer_has_the_usage_as_json_and_as_events(path, request_body, fields):
    with serving(Provider()) as provider:

        def post(body):
            data = json.dumps({"model": "m", **body}).encode()
            with closing(http.client.HTTPConnection(provider.url.removeprefix("http://"))) as connection:
                connection.request("POST", f"{path}?beta=true", data)
                return connection.getresponse().read().decode()

        whole = json.loads(post(request_body))
        events = post({**request_body, "stream": True, "stream_options": {"include_usage": True}})

    usage, name = fields
    assert whole[usage][name] > 0
    assert f'"{name}": ' in events
    assert len(provider.charges) == 2
