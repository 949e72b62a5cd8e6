"""Images and documents: offloaded, replaced by a line, described to the model, and restored."""

from __future__ import annotations

import base64
import copy
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import chat_result, from_user, tool_result

from offload import Offloader, OffloadPolicy, ReasonKind, Rule
from offload.engine.placeholder import TemplateRenderer
from offload.engine.policy import Sweep
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for
from offload.messages.media import media_facts, media_ref
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

LONG = "a line of the output\n" * 1000
EAGER = OffloadPolicy(tool_media=Rule(min_tokens=1), user_media=Rule(min_tokens=1), min_saving=0)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    noise = b"".join(zlib.compress(bytes([i])) for i in range(256))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", noise) + chunk(b"IEND", b"")


PNG = png(1200, 900)
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 300
B64, PDF64 = base64.b64encode(PNG).decode(), base64.b64encode(PDF).decode()
URL, PDF_URL = f"data:image/png;base64,{B64}", f"data:application/pdf;base64,{PDF64}"


def anthropic(data: str = B64, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    kind = "image" if media_type.startswith("image/") else "document"
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}, **more}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def result(*blocks: dict[str, Any]) -> dict[str, Any]:
    return from_user([text("look"), tool_result("t", list(blocks))])


def in_result(message: Any) -> Any:
    return message["content"][1]["content"]


def call(name: str = "Screenshot") -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": name, "input": {}}]}


ANSWER = {"role": "assistant", "content": "I see."}

# Format → a message, where its blocks with bytes are, and the type of a block of text there.
MESSAGES: dict[str, tuple[dict[str, Any], Callable[[Any], Any], str | None]] = {
    "anthropic": (
        result(anthropic(), anthropic(PDF64, "application/pdf", title="A paper")),
        in_result,
        "text",
    ),
    "anthropic-user": (
        from_user([anthropic(cache_control={"type": "ephemeral"})]),
        lambda m: m["content"],
        "text",
    ),
    "openai-chat-user": (
        from_user(
            [
                {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
                {"type": "file", "file": {"file_data": PDF_URL, "filename": "a.pdf"}},
            ]
        ),
        lambda m: m["content"],
        "text",
    ),
    "openai-chat": (
        chat_result("t", [{"type": "image_url", "image_url": {"url": URL}}]),
        lambda m: m["content"],
        "text",
    ),
    "openai-responses": (
        {
            "type": "function_call_output",
            "call_id": "t",
            "output": [
                {"type": "input_image", "image_url": URL, "detail": "auto"},
                {"type": "input_file", "file_data": PDF_URL, "filename": "a.pdf"},
            ],
        },
        lambda m: m["output"],
        "input_text",
    ),
    "openai-responses-user": (
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": URL}]},
        lambda m: m["content"],
        "input_text",
    ),
    "langchain": (
        {
            "type": "tool",
            "data": {
                "type": "tool",
                "tool_call_id": "t",
                "content": [
                    {"type": "image", "base64": B64, "mime_type": "image/png"},
                    {"type": "image", "source_type": "base64", "data": B64, "mime_type": "image/png"},
                    {"type": "image_url", "image_url": {"url": URL}},
                    {"type": "image_url", "image_url": URL},
                    anthropic(),
                ],
            },
        },
        lambda m: m["data"]["content"],
        "text",
    ),
    "bedrock": (
        from_user(
            [
                {
                    "toolResult": {
                        "toolUseId": "t",
                        "content": [
                            {"image": {"format": "png", "source": {"bytes": PNG}}},
                            {"document": {"format": "pdf", "name": "a", "source": {"bytes": PDF}}},
                        ],
                    }
                }
            ]
        ),
        lambda m: m["content"][0]["toolResult"]["content"],
        None,
    ),
    "bedrock-user": (
        from_user([{"image": {"format": "png", "source": {"bytes": PNG}}}]),
        lambda m: m["content"],
        None,
    ),
    "gemini-user": (
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": B64}}, {"text": "look"}]},
        lambda m: m["parts"],
        None,
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_holds_bytes_leaves_for_a_line_of_text_and_comes_back_elsewhere(
    tmp_path: Path, name: str
) -> None:
    message, blocks, text_type = MESSAGES[name]
    before = copy.deepcopy(message)

    out = Offloader(tmp_path, session="s", policy=EAGER).offload([message])

    assert out.errors == []
    assert message == before
    left = blocks(out.messages[0])
    assert len(left) == len(blocks(message))
    assert all(media_ref(b["text"]) for b in left if b != {"text": "look"})
    assert all(b.get("type") == text_type for b in left)
    assert B64[:200] not in repr(out.messages)
    assert Offloader(tmp_path, session="s").restore(out.messages) == [before]


def test_the_line_names_tool_type_pixels_and_bytes_and_how_to_ask(tmp_path: Path) -> None:
    off = Offloader(tmp_path, policy=EAGER)

    out = off.offload([call(), result(anthropic())])

    [block], [info] = in_result(out.messages[1]), out.records
    assert block["text"] == (
        f"[Offloaded: image of Screenshot, image/png, 1200x900 pixels, {len(PNG)} bytes, id {info.ref}. "
        "It cannot be shown again]"
    )
    assert info.tool_name == "Screenshot"
    assert base64.b64decode(b"".join(off.content(info.ref)).partition(b",")[2]) == PNG


def test_a_read_of_an_image_says_what_it_is_and_shows_none_of_its_bytes(tmp_path: Path) -> None:
    off = Offloader(tmp_path, policy=EAGER)
    ref = off.offload([result(anthropic())]).records[0].ref

    for answer in (off.tools.read(ref), off.tools.read(ref, offset=500), off.tools.tail(ref)):
        assert "(image/png, 1200x900 pixels, base64: not shown)" in answer
        assert "[end of item]" in answer
        assert len(answer) < 300


def test_an_image_of_a_tool_leaves_once_it_was_seen_and_the_user_s_own_stays(tmp_path: Path) -> None:
    mine = {"role": "user", "content": [anthropic()]}
    off = Offloader(tmp_path)
    turn = [mine, call(), result(anthropic())]

    assert off.offload(turn).messages == turn
    seen = off.offload([*turn, ANSWER])
    out = seen.messages

    assert seen.tokens_before - seen.tokens_after > 1300
    assert out[0] is mine
    assert media_ref(in_result(out[2])[0]["text"])


OWN = {"tool_result": Rule(min_tokens=10)}


@pytest.mark.parametrize(
    ("policy", "size", "kind"),
    [
        (None, 100, ReasonKind.TOO_SMALL),
        (OffloadPolicy(types=OWN), 1200, ReasonKind.DISABLED),
        (OffloadPolicy(types=OWN, tool_media=Rule(min_bytes=100)), 1200, None),
    ],
    ids=["small", "own types", "own types and media"],
)
def test_an_image_stays_below_the_threshold_or_if_own_types_do_not_name_media(
    tmp_path: Path, policy: OffloadPolicy | None, size: int, kind: ReasonKind | None
) -> None:
    messages = [result(anthropic(base64.b64encode(png(size, size * 3 // 4)).decode())), ANSWER]

    out = Offloader(tmp_path, policy=policy).offload(messages)

    assert len(out.records) == (kind is None)
    assert (out.messages == messages) is (kind is not None)
    assert kind in (None, *(d.reason.kind for d in out.decisions if d.item.media_type))


@pytest.mark.parametrize("rule", [Rule(min_tokens=50_000), Rule(min_bytes=100, after_replies=100)])
def test_a_sweep_takes_no_image(tmp_path: Path, rule: Rule) -> None:
    policy = OffloadPolicy(
        tool_media=rule,
        sweep=Sweep(trigger_tokens=1, keep_recent=0),
        min_saving=0,
    )
    messages = [result(anthropic()), ANSWER]
    assert Offloader(tmp_path, policy=policy).offload(messages).messages == messages


def test_text_and_images_of_one_result_leave_and_come_back_each_in_its_time(tmp_path: Path) -> None:
    blocks = [text("a\n" + LONG), anthropic(), text("b\n" + LONG), anthropic(PDF64, "application/pdf")]
    messages = [call(), result(*blocks)]
    off = Offloader(tmp_path, session="s")

    first = off.offload(messages).messages
    assert [b["type"] for b in in_result(first[1])] == ["text", "image", "document"]
    for sent in (messages, first):
        # The conversation continues with the originals or the sent messages, also in another process.
        then = Offloader(tmp_path, session="s").offload([*sent, ANSWER]).messages
        assert [b["type"] for b in in_result(then[1])] == ["text"] * 3
        again = Offloader(tmp_path, session="s")
        assert again.offload(then).messages == then
        assert again.restore(then) == [*messages, ANSWER]


def test_a_mark_that_a_caller_puts_on_or_takes_off_stays_as_it_is_then(tmp_path: Path) -> None:
    cache = {"type": "ephemeral"}
    off = Offloader(tmp_path, policy=EAGER)
    [marked] = off.offload([{"role": "user", "content": [anthropic(cache_control=cache)]}]).messages
    assert marked["content"][0].pop("cache_control") == cache

    [restored] = off.restore([marked])
    assert restored == {"role": "user", "content": [anthropic()]}


LOOK_ALIKE = "[Offloaded: image of Screenshot, image/png, 9 bytes, id aaaaaaaaaa. It cannot be shown again]"


def test_a_text_that_only_looks_like_an_image_that_left_is_untouched(tmp_path: Path) -> None:
    messages = [result(text(LOOK_ALIKE), text(LONG), text(LOOK_ALIKE)), from_user(LOOK_ALIKE)]
    off = Offloader(tmp_path, session="s")

    out = off.offload(messages)

    assert out.errors == []
    assert [b["text"] == LOOK_ALIKE for b in in_result(out.messages[0])] == [True, False, True]
    assert off.restore(out.messages) == messages


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LONG}},
        anthropic("aGk", odd=object()),
        anthropic("aGk", media_type="audio/wav"),
    ],
    ids=["url", "file", "text", "no JSON", "sound"],
)
def test_what_holds_no_bytes_or_would_not_come_back_equal_stays(block: dict[str, Any]) -> None:
    message = result(block)
    assert adapter_for(message).scan(message, "m", Calls()).media == []


def test_base64_in_an_odd_spelling_comes_back_in_it(tmp_path: Path) -> None:
    for data in (B64[:-2], B64 + "\n", "\n".join([B64[:76], B64[76:]]), "not base64!" * 99):
        message = result(anthropic(data))
        off = Offloader(tmp_path, policy=EAGER)
        out = off.offload([message])
        assert len(out.records) == 1
        assert off.restore(out.messages) == [message]


def test_a_user_s_renderer_and_hooks_meet_texts_alone(tmp_path: Path) -> None:
    met: list[str] = []

    def note(said: str) -> str:
        met.append(said)
        return said

    off = Offloader(
        tmp_path,
        policy=EAGER,
        placeholder=TemplateRenderer("<{ref}>"),
        redact=note,
        summarizer=note,
    )
    messages = [result(anthropic(title="A paper")), {"role": "user", "content": LONG}]
    out = off.offload(messages)

    assert off.restore(out.messages) == messages
    assert not any("base64," in said for said in met)
    assert any("A paper" in said for said in met)


def test_an_image_that_cannot_be_stored_stays_whole_even_where_texts_are_cut() -> None:
    store = FaultyStore(MemoryStore("memory://"), verb="put", is_lasting=True)
    messages = [result(anthropic())]
    out = Offloader(store, policy=EAGER, on_error="truncate").offload(messages)
    assert out.messages == messages
    assert len(out.errors) == 1


# --- facts from a header --------------------------------------------------------------------------

JPEG = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    b"\xff\xc4\x00\x04\x00\x00\xff\xc0\x00\x11\x08\x02\x58\x03\x20\x03"
)
HEADS = {
    "png": (PNG, "image/png", (1200, 900), 1440),
    "gif": (b"GIF89a" + struct.pack("<HH", 320, 200) + b"\0" * 9, "image/gif", (320, 200), 86),
    "jpeg": (JPEG, "image/jpeg", (800, 600), 640),
    "webp": (
        b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0" + b"\0" * 6 + struct.pack("<HH", 64, 48),
        "image/webp",
        (64, 48),
        5,
    ),
    "webp lossless": (
        b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 63 | 47 << 14),
        "image/webp",
        (64, 48),
        5,
    ),
    "webp extended": (
        b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x3f\0\0\x2f\0\0",
        "image/webp",
        (64, 48),
        5,
    ),
    "cut off": (PNG[:20], "image/png", None, 1600),
    "unknown": (b"\0\0\0\x20ftypavif" * 9, "image/avif", None, 1600),
    "huge": (png(60_000, 60_000), "image/png", (60_000, 60_000), 1600),
    "document": (PDF, "application/pdf", None, 4500),
}


@pytest.mark.parametrize(("data", "media_type", "pixels", "tokens"), HEADS.values(), ids=HEADS)
def test_size_and_tokens_are_told_by_the_header(
    data: bytes, media_type: str, pixels: tuple[int, int] | None, tokens: int
) -> None:
    facts = media_facts(f"data:{media_type};base64,{base64.b64encode(data).decode()}")
    assert facts is not None
    assert (facts.media_type, facts.bytes, facts.pixels, facts.tokens) == (
        media_type,
        len(data),
        pixels,
        tokens,
    )


def test_a_text_that_is_no_data_url_tells_nothing_and_a_jpeg_of_endless_segments_no_size() -> None:
    for url in ("", "data:", "text", "data:text/plain;base64,aGk=", "data:image/png,x"):
        assert media_facts(url) is None
    data = b"\xff\xd8\xff" + b"\xff\xe0\x00\x00" * 100_000
    facts = media_facts(f"data:image/jpeg;base64,{base64.b64encode(data).decode()}")
    assert facts is not None
    assert facts.pixels is None


def test_forms_are_json_without_the_bytes() -> None:
    message = result(anthropic(PDF64, "application/pdf", title="A paper"))
    [item] = adapter_for(message).scan(message, "m", Calls()).media
    assert item.form is not None
    assert json.loads(item.form)["block"]["title"] == "A paper"
    assert len(item.form) < 200
