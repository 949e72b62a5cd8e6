"""The pages of a store: who gets in, what they show, what they never do."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from large import Clock, LargeStore, fill
from pages import ORIGIN, Html, path_of, serving, stranger, visitor
from retained import clocked, opened, put, ref_of, text_of
from starlette.testclient import TestClient

from offload import Offloader, open_store, share
from offload.engine.policy import Retention
from offload.maintenance.retention import collect
from offload.replay import HiddenItem, ShadowPair
from offload.replay._pairs import put_pair
from offload_backends.memory import MemoryStore

HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\x1b]52;c;aGk=\x07 \u202etxt.exe &amp;'
)
DAY = 86_400


def put_text(store: Any, text: str, session: str = "s", **names: Any) -> str:
    return ref_of(
        opened(store, session).offload_text(text, **({"tool_name": "Bash", "tool_use_id": "1"} | names))
    )


def keys(store: Any) -> dict[str, bytes]:
    return {found.key: store.get(found.key) for found in store.keys()}


def pages(session: str, ref: str) -> list[str]:
    """Return the addresses of the pages of a store, of a session, and of one of its records."""
    of_session = ("", "/deleted", "/check", "/timeline", "/conversation", "/search?q=alert")
    of_record = ("", "/model", "/outline", "/search?q=alert", "/query", "/changes")
    return [
        *("/", "/shadow", "/retention?session_records=1&live_for=0s", "/find?q=TXT.exe"),
        *(path_of(session) + page for page in of_session),
        *(path_of(session, ref) + page for page in of_record),
    ]


# Who gets in


def test_the_ticket_opens_the_page_once_and_for_one_browser(store):
    first, ticket = stranger(store)
    second = TestClient(first.app, base_url=ORIGIN)

    assert first.get("/", params={"ticket": "guessed"}).status_code == 401
    opened = first.get("/", params={"ticket": ticket})
    assert opened.status_code == 200
    assert "Sessions" in Html(first.get("/").text).text
    assert second.get("/", params={"ticket": ticket}).status_code == 401
    assert second.get("/").status_code == 401
    cookie = opened.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert ticket not in cookie


def test_the_address_of_a_store_is_the_same_after_a_restart_and_asks_for_the_new_ticket(tmp_path):
    off = Offloader(tmp_path / "store", session="s")
    ref = ref_of(off.offload_text("a line\n" * 9000))
    share(off.store, "s", ref, to="t")
    ports = []
    for _ in range(2):
        with serving(tmp_path / "store") as (address, _):
            ports.append(urlsplit(address).port)
    assert ports[0] == ports[1]

    client, ticket = stranger(open_store(tmp_path / "store"))
    asked = Html(client.get("/find?q=a").text)
    given = [(attrs["name"], attrs.get("value")) for tag, attrs in asked.tags if tag == "input"]
    assert given == [("q", "a"), ("ticket", None)]
    # The page that was asked for is shown again, with its query.
    page = Html(client.get("/find", params={"q": "a", "ticket": ticket}).text)
    assert page.links[-1] == f"{ORIGIN}/find?q=a"
    # A record that two sessions read is one.
    assert {"Sessions2", "Records1"} <= set(Html(client.get("/").text).text.split())


def test_port_0_is_a_free_one(tmp_path):
    Offloader(tmp_path, session="s").offload_text("a line\n" * 9000)
    with serving(tmp_path) as (address, _), serving(tmp_path, "--port", "0") as (other, _):
        assert urlsplit(address).port != urlsplit(other).port


def test_without_the_cookie_no_page_says_anything_of_the_store(store):
    ref = put_text(store, "a secret text\n" * 100, session="secret-session")
    client, _ = stranger(store)

    for path in (*pages("secret-session", ref), path_of("secret-session", ref) + "/download", "/nowhere"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "host",
            ["evil.example", "127.0.0.1:80", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:8765"],
        ),
        ("origin", ["http://evil.example", "null", "http://127.0.0.1:1", f"{ORIGIN}.evil.example"]),
    ],
)
def test_a_request_that_names_another_host_or_origin_gets_nothing(store, name, values):
    client = visitor(store)
    for value in values:
        answer = client.get("/", headers={name: value})
        assert answer.status_code == (421 if name == "host" else 403), value
        assert "Sessions" not in answer.text


def test_another_site_may_link_to_a_page_and_send_nothing(store):
    client, foreign = visitor(store), {"sec-fetch-site": "cross-site"}

    assert client.get("/", headers=foreign).status_code == 200
    assert client.post("/", headers={**foreign, "origin": ORIGIN}).status_code == 403


def test_every_answer_forbids_other_scripts_frames_and_guessing_of_types(store):
    client = visitor(store)
    ref = put_text(store, "text\n" * 500)

    for path in (*pages("s", ref), "/nowhere", "/style.css"):
        headers = client.get(path).headers
        policy = dict(
            part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy["script-src"])
        assert policy["frame-ancestors"] == "'none'"
        assert policy["form-action"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


# What the pages show


def test_sessions_are_shown_with_their_figures_latest_first():
    store = clocked()
    for day, (name, count) in enumerate([("old", 3), ("newer session", 2)]):
        store.now += day * DAY
        for number in range(count):
            put(opened(store, name), number)

    page = Html(visitor(store).get("/").text)

    links = [link for link in page.links if link.startswith("/s/")]
    assert links == [path_of("newer session"), path_of("old")]
    assert re.findall(r"Records\s*(\d+)", page.text)[0] == "5"


def test_a_session_with_a_name_too_long_for_a_key_is_found_and_named_in_full(store):
    name = "long " * 60
    put_text(store, text_of(1), session=name)
    client = visitor(store)

    [link] = {link for link in Html(client.get("/").text).links if link.startswith("/s/")}

    assert name.strip() in Html(client.get(link).text).text


def test_an_address_that_names_no_session_is_not_found(store):
    put_text(store, text_of(1))
    client = visitor(store)

    for part in ("S", "=53", "a%20b", "..%2fr", "=zz", "nobody", "=", "%00"):
        for page in ("", "/deleted", "/check", "/r/aaaaaaaaaa"):
            answer = client.get(f"/s/{part}{page}")
            assert answer.status_code == 404, part + page
            assert "Not found" in Html(answer.text).text
    assert f"no session 'nobody' in {store.url}" in page_text(client, path_of("nobody"))


def test_a_foreign_a_guessed_and_a_malformed_ref_are_not_found(store):
    foreign = put_text(store, text_of(1), session="other")
    put_text(store, text_of(2))
    client = visitor(store)

    for ref in (foreign, "aaaaaaaaaa", "no-ref", "~", "%2e%2e%2foffload"):
        assert client.get(f"{path_of('s')}/r/{ref}").status_code == 404


def test_tokens_over_time_are_a_plot_and_a_table():
    store = clocked()
    off = opened(store)
    for number in range(4):
        put(off, number)
        store.now += DAY
    total = sum(info.tokens for info in off.records())

    page = Html(visitor(store).get("/").text)

    [image] = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert f"{total:,}" in (image["aria-label"] or "")
    paths = {attrs["class"]: attrs["d"] or "" for tag, attrs in page.tags if tag == "path"}
    heights = [float(y) for y in re.findall(r"V([\d.]+)", paths["line"])]
    assert heights == sorted(heights, reverse=True)
    assert (heights[0], heights[-1]) == pytest.approx((75, 0), abs=1)
    assert f"{total:,}" in page.text


def test_records_that_are_over_are_marked_and_deleted_ones_shown_with_time_and_reason():
    store = clocked()
    ref = ref_of(put(opened(store, ttl=60), 1))
    put(opened(store), 2)
    client = visitor(store)
    # Its time is long past.
    assert "expired" in page_text(client, path_of("s")).partition(ref)[2]
    assert client.get(path_of("s", ref)).status_code == 200

    store.now += 3600
    collect(store)

    assert "expired" in Html(client.get(f"{path_of('s')}/deleted").text).text
    answer = client.get(path_of("s", ref))
    assert answer.status_code == 410
    assert "expired; marked for deletion" in answer.text
    assert ref not in client.get(path_of("s")).text


def test_the_preview_of_gc_names_the_records_it_would_delete_and_writes_nothing():
    store = clocked()
    off = opened(store)
    refs = []
    for number in range(5):
        refs.append(ref_of(put(off, number)))
        store.now += 1
    before = store.snapshot()

    limits = {"session_records": "2", "live_for": "1s"}
    text = visitor(store).get("/retention", params=limits).text
    page = Html(text)

    assert re.findall(r'<input name="(\w+)"', text) == [*Retention.model_fields]
    gone = {link.rpartition("/")[2] for link in page.links if "/r/" in link}
    assert gone == set(refs[:3])
    assert store.snapshot() == before


@pytest.mark.parametrize("limits", [{"session_records": "-1"}, {"grace": "soon"}, {"store_bytes": "1e9"}])
def test_limits_that_cannot_be_meant_are_explained(store, limits):
    answer = visitor(store).get("/retention", params=limits)

    assert answer.status_code == 400
    assert next(iter(limits)) in Html(answer.text).text


def test_a_check_reads_every_record_and_names_the_damaged_one(store):
    good, bad = put_text(store, text_of(1)), put_text(store, text_of(2), tool_use_id="2")
    damage(store, bad)
    client = visitor(store)

    page = Html(client.get(f"{path_of('s')}/check").text)

    assert "2 records read" in page.text
    assert [link.rpartition("/")[2] for link in page.links if "/r/" in link] == [bad]
    assert client.get(path_of("s", good)).status_code == 200


def damage(store: MemoryStore, ref: str) -> None:
    [key] = [found.key for found in store.keys() if f"/{ref}~" in found.key]
    data = bytearray(store.get(key))
    data[len(data) // 3] ^= 0xFF
    store.put(key, bytes(data), overwrite=True)


def shadow_pair(text: str) -> ShadowPair:
    return ShadowPair(0.0, text, text, [HiddenItem(text, text, 9, 1)]).compared(text, "ls", "ls")


def test_shadow_requests_have_a_page_with_their_interval_and_both_actions(store):
    assert "No request was sent again" in page_text(visitor(store), "/shadow")
    for _ in range(21):
        put_pair(store, "s", shadow_pair("make again"))
    put_pair(store, "s", ShadowPair(0.0, "", "", lost="status 429"))
    text = " ".join(page_text(visitor(store), "/shadow").split())
    assert "Offloading changes the next action in 76.8% to 100.0% of requests. 21 pairs for $0.000." in text
    assert "1 lost: status 429" in text
    assert "all 21 100.0% 0.0% 100.0% 76.8% to 100.0%" in text
    assert "make again ls make again (make again), 9 characters" in text


# Hostile content


def test_nothing_that_was_stored_becomes_markup_or_a_control(store):
    for session in (HOSTILE, "s"):
        ref = put_text(store, f"{HOSTILE}\n" * 200, session=session, tool_name=HOSTILE, tool_use_id=HOSTILE)
    off = opened(store)
    off.offload_text(f"{HOSTILE} one\n" * 200, tool_name="Bash", title=HOSTILE)
    off.with_options(journal=True, model=HOSTILE).offload([{"role": "user", "content": HOSTILE}])
    put_pair(store, "s", shadow_pair(HOSTILE))
    client, before = visitor(store), keys(store)

    for path in (*pages("s", ref), path_of(HOSTILE)):
        answer = client.get(path)
        assert answer.status_code == 200, path
        page = Html(answer.text)
        assert page.count("script") == 0, path
        assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs), path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", answer.text), path
    shown = HOSTILE.replace("\x1b", "␛").replace("\x07", "␇").replace("\u202e", "\\u{202e}")
    for path in (path_of("s", ref), f"{path_of('s')}/conversation"):
        assert shown in page_text(client, path), path
    assert keys(store) == before


def page_text(client: Any, path: str) -> str:
    return Html(client.get(path).text).text


@pytest.mark.parametrize(
    "where", ["?q=", "?mode=", "?page=", "?line=", "?from=", "?pointer=", "?done=", "?after="]
)
def test_nothing_in_an_address_becomes_markup(store, where):
    ref = put_text(store, text_of(1))
    client = visitor(store)

    for path in pages("s", ref):
        page = Html(
            client.get(path.partition("?")[0] + where + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E%1b").text
        )
        assert page.count("script") == 0


# Read only, unless changes are allowed


def test_without_leave_no_page_writes_and_no_form_is_answered(store):
    ref = put_text(store, text_of(1))
    before = keys(store)
    client = visitor(store)

    for path in pages("s", ref):
        assert '<form method="post"' not in client.get(path).text
    for act in ("pin", "unpin", "delete"):
        answer = client.post(f"{path_of('s', ref)}/{act}", headers={"origin": ORIGIN})
        assert answer.status_code in (404, 405)
    assert keys(store) == before


@pytest.mark.parametrize("allows_changes", [False, True])
def test_a_snapshot_of_a_large_session_is_stored_only_if_changes_are_allowed(allows_changes):
    store = LargeStore(Clock())
    fill(store, 6000)

    assert visitor(store, allows_changes=allows_changes).get(path_of("s")).status_code == 200
    assert ("PUT i/" in store.spent()) == allows_changes


def form_key(client: Any, path: str) -> str:
    tags = Html(client.get(path).text).tags
    return next(
        attrs["value"] or "" for tag, attrs in tags if attrs.get("name") == "form_key" and tag == "input"
    )


def send(client: Any, path: str, key: str, origin: str | None = ORIGIN) -> Any:
    headers = {} if origin is None else {"origin": origin}
    return client.post(path, data={"form_key": key}, headers=headers)


def test_a_form_pins_unpins_and_deletes(store):
    ref = put_text(store, text_of(1))
    client = visitor(store, allows_changes=True)
    record, pin_key = path_of("s", ref), f"g/s/pinned~{ref}"
    key = form_key(client, record)

    assert "Pinned" in Html(send(client, f"{record}/pin", key).text).text
    assert pin_key in keys(store)
    assert "Not deleted" in Html(send(client, f"{record}/delete", key).text).text
    assert "No longer pinned" in Html(send(client, f"{record}/unpin", key).text).text
    assert pin_key not in keys(store)
    assert "Deleted" in Html(send(client, f"{record}/delete", key).text).text
    assert any(k.endswith(".deleted") for k in keys(store))
    assert client.get(record).status_code == 410


def test_a_session_is_pinned_and_unpinned_if_it_is_there(store):
    put_text(store, text_of(1))
    client = visitor(store, allows_changes=True)
    key, before = form_key(client, path_of("s")), keys(store)

    assert send(client, f"{path_of('nobody')}/pin", key).status_code == 404
    assert keys(store) == before
    send(client, f"{path_of('s')}/pin", key)
    assert "g/s/pinned" in keys(store)
    send(client, f"{path_of('s')}/unpin", key)
    assert "g/s/pinned" not in keys(store)


def test_what_is_not_the_form_of_a_visitor_of_this_page_changes_nothing(store):
    ref = put_text(store, text_of(1))
    client = visitor(store, allows_changes=True)
    record, before = path_of("s", ref), keys(store)
    key = form_key(client, record)

    for given, origin in (
        *[("", ORIGIN), ("guessed", ORIGIN)],
        *[(key, None), (key, "http://evil.example"), (key, "null")],
    ):
        assert send(client, f"{record}/delete", given, origin).status_code == 403, origin
    assert send(client, f"{record}/pin", "x" * 100_000).status_code == 413
    for act in ("pin", "unpin", "delete"):
        assert client.get(f"{record}/{act}").status_code in (404, 405)
    client.cookies.clear()
    assert send(client, f"{record}/delete", key).status_code == 401
    assert keys(store) == before
