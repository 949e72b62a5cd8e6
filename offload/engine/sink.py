"""A sink takes the output of a tool as it comes, of any size, and gives its placeholder at the end."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

from offload.codec import ContentWriter, SpooledContent
from offload.errors import ConfigError, OffloadError, StoreError
from offload.policy import Decision
from offload.record import RecordInfo
from offload.tokens import TokenCounter


class Taken(NamedTuple):
    """What became of a text.

    Attributes:
        text: what stands in the message: its placeholder, or the text where it stays.
        info: its record, None where it stays.
        error: why it could not be stored, None where nothing failed.
        decision: why it stays, or goes; None of a text that is too long to be asked about.
    """

    text: str
    info: RecordInfo | None = None
    error: OffloadError | None = None
    decision: Decision | None = None


class Sink:
    """Takes a text in parts; `Offloader.open_sink` makes one.

    A text of up to 8 MiB is treated as `Offloader.offload_text` treats it. A longer one always goes to
    the store, since it could not stand in a message. It is compressed as it comes: about 10 MiB are held
    in memory, the rest in a temporary file, and nothing reaches the store before the end. Where the store
    takes no streams, and with the codec "json", the end takes memory for the whole record.

        with off.open_sink(tool_name="Bash") as sink:
            for chunk in process.stdout:
                sink.write(chunk)
        message = sink.placeholder

    Leaving the block by an exception discards everything. A sink that could not take a part, because the
    temporary file found no room, has failed for good: nothing is stored, and `write`, `close` and
    `placeholder` raise the error that `error` returns. A sink is for one thread.

    Args:
        take_text: decides about a whole text, and stores it.
        take_long: stores content that is too long to be a text; it is gone when the call returns.
        count_tokens: counts tokens; of a long text it is given 256 KiB at a time.
    """

    def __init__(
        self,
        take_text: Callable[[str], Taken],
        take_long: Callable[[SpooledContent], Taken],
        count_tokens: TokenCounter,
    ) -> None:
        self._take_text = take_text
        self._take_long = take_long
        self._writer = ContentWriter(count_tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._is_open = True
        self._taken: Taken | None = None
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

        Bytes are UTF-8, and a character may begin in one chunk and end in the next. A byte that is none
        becomes a lone surrogate, as `bytes.decode(errors="surrogateescape")` makes it.

        Raises:
            ConfigError: the sink is closed, or `chunk` is neither text nor bytes.
            StoreError: the temporary file cannot take it, or could not take a part before it.
        """
        self._check_whole()
        if not self._is_open:
            raise ConfigError("this sink is closed; open another one")
        if isinstance(chunk, str):
            # What a character of bytes began before a text is no character.
            self._add(self._decoder.decode(b"", final=True) + chunk)
        elif isinstance(chunk, bytes):
            self._add(self._decoder.decode(chunk))
        else:
            raise ConfigError(f"a sink takes str or bytes, not {type(chunk).__name__}")
        return len(chunk)

    def close(self) -> None:
        """End the text: decide about it and store it. Closing again does nothing.

        Raises:
            StoreError: a part of the text was lost; nothing is stored. Closing again raises it again.
            OffloadError: with `on_error="raise"`, what the store raised; then there is no placeholder.
        """
        self._check_whole()
        if not self._is_open:
            return
        try:
            self._add(self._decoder.decode(b"", final=True))
            with self._losing():
                content = self._writer.finish()
            if isinstance(content, str):
                self._taken = self._take_text(content)
            else:
                self._taken = self._take_long(content)
        finally:
            self._discard()

    @property
    def placeholder(self) -> str:
        """The text for the message: the placeholder, or the whole text where it stays.

        Raises:
            ConfigError: the sink is still open, or what it took was discarded.
            StoreError: a part of the text was lost.
        """
        return self._result().text

    @property
    def info(self) -> RecordInfo | None:
        """The record, None where the text stays; raises as `placeholder` does."""
        return self._result().info

    @property
    def error(self) -> OffloadError | None:
        """Why the text could not be stored, None where nothing failed; else raises as `placeholder` does."""
        return self._lost or self._result().error

    def _result(self) -> Taken:
        self._check_whole()
        if self._taken is not None:
            return self._taken
        if self._is_open:
            raise ConfigError("this sink is open: its placeholder is known after close()")
        raise ConfigError("what this sink took was discarded, or could not be stored: it has no placeholder")

    def _check_whole(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _add(self, text: str) -> None:
        with self._losing():
            self._writer.add(text)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Take whatever fails inside for a part that is lost: the sink has failed for good."""
        try:
            yield
        except BaseException as error:
            said = str(error) if isinstance(error, OffloadError) else type(error).__name__
            self._lost = StoreError(f"a part of what this sink took is lost, nothing of it is stored: {said}")
            self._discard()
            if isinstance(error, OffloadError):
                raise self._lost from error
            raise

    def _discard(self) -> None:
        self._is_open = False
        self._writer.close()
