"""A sink takes a tool's output of any size in chunks, and returns its placeholder at the end."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from offload.base.tokens import TokenCounter
from offload.engine.results import OffloadOutcome
from offload.errors import ConfigError, OffloadError, StoreError
from offload.records.codec.spooled import ContentWriter, SpooledContent
from offload.records.record import RecordInfo


class Sink:
    """A text that is written in chunks; create it with `Offloader.open_sink`.

    A text of up to 8 MiB is treated as in `Offloader.offload_text`. A longer text is always offloaded, since
    it does not fit a message. It is compressed while it is written: about 10 MiB are held in memory, the rest
    in a temporary file, and nothing is stored before the end. If the store has no streams, or the codec is
    "json", closing needs memory for the whole record.

        with off.open_sink(tool_name="Bash") as sink:
            for chunk in process.stdout:
                sink.write(chunk)
        message = sink.placeholder

    An exception inside the block discards the text. If a chunk cannot be written because the disk of the
    temporary file is full, the sink has failed for good: nothing is stored, and `write`, `close` and
    `placeholder` raise the error that `error` returns. Use a sink in one thread.
    """

    def __init__(
        self, take: Callable[[str | SpooledContent], OffloadOutcome], count_tokens: TokenCounter
    ) -> None:
        self._take = take
        self._writer = ContentWriter(count_tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._is_open = True
        self._outcome: OffloadOutcome | None = None
        self._lost: StoreError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._discard()

    def write(self, chunk: str | bytes) -> int:
        """Append `chunk` and return its length.

        Bytes are UTF-8, and a character may start in one chunk and end in the next. An invalid byte becomes a
        lone surrogate, as with `bytes.decode(errors="surrogateescape")`.

        Raises:
            ConfigError: the sink is closed, or `chunk` is neither str nor bytes.
            StoreError: the temporary file cannot take it, or could not take an earlier part.
        """
        self._check_whole()
        if not self._is_open:
            raise ConfigError("the sink is closed; open another one")
        if isinstance(chunk, str):
            # An unfinished character of earlier bytes ends where a str begins.
            self._add(self._decoder.decode(b"", final=True) + chunk)
        elif isinstance(chunk, bytes):
            self._add(self._decoder.decode(chunk))
        else:
            raise ConfigError(f"chunk must be str or bytes, got {type(chunk).__name__}")
        return len(chunk)

    def close(self) -> None:
        """End the text and offload it. Closing again has no effect.

        Raises:
            StoreError: a part of the text was lost; nothing is stored. Closing again raises it again.
            OffloadError: with `on_error="raise"`, the store's error; then there is no placeholder.
        """
        self._check_whole()
        if not self._is_open:
            return
        try:
            self._add(self._decoder.decode(b"", final=True))
            with self._losing():
                content = self._writer.finish()
            self._outcome = self._take(content)
        finally:
            self._discard()

    @property
    def placeholder(self) -> str:
        """The text for the message: the placeholder or, if the text is kept, the whole text.

        Raises:
            ConfigError: the sink is still open, or its text was discarded.
            StoreError: a part of the text was lost.
        """
        return self._result().text

    @property
    def info(self) -> RecordInfo | None:
        """The record, None if the text is kept; raises as `placeholder` does."""
        return self._result().info

    @property
    def error(self) -> OffloadError | None:
        """Why the text could not be stored, None if nothing failed; else raises as `placeholder` does."""
        return self._lost or self._result().error

    def _result(self) -> OffloadOutcome:
        self._check_whole()
        if self._outcome is not None:
            return self._outcome
        if self._is_open:
            raise ConfigError("the sink is open: call close() before reading its placeholder")
        raise ConfigError("the sink has no placeholder: its text was discarded or could not be stored")

    def _check_whole(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _add(self, text: str) -> None:
        with self._losing():
            self._writer.add(text)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Treat any failure inside as a lost part: the sink has failed for good."""
        try:
            yield
        except BaseException as error:
            reason = str(error) if isinstance(error, OffloadError) else type(error).__name__
            self._lost = StoreError(f"a part of the sink's text is lost, nothing is stored: {reason}")
            self._discard()
            if isinstance(error, Exception):
                raise self._lost from error
            raise

    def _discard(self) -> None:
        self._is_open = False
        self._writer.close()
