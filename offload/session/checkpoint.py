"""Checkpoints: the head of a journal at a time, to be kept outside of the store, signed or not."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import msgspec

from offload.errors import ConfigError, needs_extra
from offload.threads.locks import NO_FORK

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# A signature is of this use and of this form alone.
_SIGNED = "offload checkpoint 1"


class Checkpoint(msgspec.Struct, frozen=True):
    """The head of a session's journal at a time.

    Attributes:
        session: the name of the session.
        entry: the number of its last journal entry with content.
        digest: the digest of this entry in hexadecimal, and so of all before it.
        time: when the checkpoint was made, by the clock of its maker, in ISO format.
        signature: the Ed25519 signature of the other fields in base64; empty if there is none. `FORMAT.md`
            has its form.
    """

    session: str
    entry: int
    digest: str
    time: str
    signature: str = ""

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON in ASCII."""
        return json.dumps(msgspec.structs.asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Checkpoint:
        """Return the checkpoint of `to_json`. Raises `ConfigError` if the text is not a checkpoint."""
        try:
            return _DECODER.decode(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not a checkpoint of offload: {error}") from error

    def signed(self, key: bytes | Ed25519PrivateKey) -> Checkpoint:
        """Return the checkpoint with a signature.

        Args:
            key: an Ed25519 private key, or its PEM file without a password (PKCS #8).

        Raises:
            ConfigError: `key` is not such a key.
            MissingExtraError: the package of the extra `crypto` is not installed.
        """
        signature = base64.b64encode(_private(key).sign(self._signed_bytes)).decode()
        return msgspec.structs.replace(self, signature=signature)

    def is_signed_by(self, key: bytes | Ed25519PublicKey) -> bool:
        """Return whether the signature is that of a public key; takes and raises what `signed` does."""
        public = _public(key)
        with NO_FORK:
            from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 # needs an extra

        try:
            public.verify(base64.b64decode(self.signature, validate=True), self._signed_bytes)
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def _signed_bytes(self) -> bytes:
        fields = [_SIGNED, self.session, self.entry, self.digest, self.time]
        return json.dumps(fields, separators=(",", ":")).encode()


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_DECODER = msgspec.json.Decoder(Checkpoint)


def _private(key: bytes | Ed25519PrivateKey) -> Ed25519PrivateKey:
    with needs_extra("crypto"), NO_FORK:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 # needs an extra
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    loaded = _loaded(key, lambda data: serialization.load_pem_private_key(data, None))
    if not isinstance(loaded, Ed25519PrivateKey):
        raise ConfigError(
            "the key of a checkpoint must be an Ed25519 private key, or its PEM without a password"
        )
    return loaded


def _public(key: bytes | Ed25519PublicKey) -> Ed25519PublicKey:
    with needs_extra("crypto"), NO_FORK:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 # needs an extra
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    loaded = _loaded(key, serialization.load_pem_public_key)
    if not isinstance(loaded, Ed25519PublicKey):
        raise ConfigError("the public key of a checkpoint must be an Ed25519 public key, or its PEM")
    return loaded


def _loaded(key: Any, load: Any) -> Any:
    """Return the key in a PEM file; None if it is none, so that no error quotes it."""
    if not isinstance(key, bytes):
        return key
    try:
        return load(key)
    except Exception:  # noqa: BLE001 # the package has many errors for bytes that are not a key
        return None
