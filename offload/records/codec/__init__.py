"""Record ⇄ bytes. A writer chooses a codec by name; a reader finds it by the key's suffix."""

from offload.errors import CorruptError, check_choice
from offload.records.codec._seekable import SeekableCodec
from offload.records.codec.base import Codec as Codec, Fetch as Fetch
from offload.records.codec.quoting import QuotingCodec
from offload.records.codec.readable import DocumentCodec, PlainCodec

CODECS: dict[str, Codec] = {c.name: c for c in (SeekableCodec(), DocumentCodec(), PlainCodec())}
# Of a content that quotes other records; no writer chooses it by name.
QUOTING = QuotingCodec()
_BY_SUFFIX: dict[str, Codec] = {c.suffix: c for c in (*CODECS.values(), QUOTING)}


def get_codec(name: str) -> Codec:
    """Return the codec called `name`: "zstd", "json" or "raw". Raises `ConfigError` for any other."""
    check_choice("codec", name, CODECS)
    return CODECS[name]


def find_codec(key: str) -> Codec:
    """Return the codec whose suffix `key` ends in. Raises `CorruptError` if there is none."""
    codec = _BY_SUFFIX.get("." + key.rpartition(".")[2])
    if codec is None:
        raise CorruptError(f"no codec reads {key}")
    return codec
