"""The decision on one item: its facts, the policy, and whether its text is a placeholder."""

from __future__ import annotations

from dataclasses import replace

from offload.engine.recognition import Claim, Proof
from offload.errors import OffloadError
from offload.events import failure
from offload.messages.base import Item
from offload.policy import Decision, ItemFacts
from offload.settings.options import Options
from offload.tokens import estimate_tokens

LOOK_ALIKE = "looks like a placeholder but is not one"
FOREIGN_NOTICE = "looks like a notice of this session but is not one"


def unweighed(item: Item, message: int) -> Decision:
    """Return the decision to keep an item of message `message` whose facts are not known yet."""
    chars = len(item.text)
    facts = ItemFacts(message, item.block, item.item_type, item.tool_name, item.tool_use_id, chars, None, 0)
    return Decision(facts, "keep", "its facts are not known", 0, None, 0)


class Judge:
    """Decides about single items.

    Attributes:
        pinned: ids of the tool calls whose results the caller wants to keep.
        code_calls: ids of the tool calls made by code, which reads the results itself. They are kept when the
            message of the call is cut off.
    """

    def __init__(self, options: Options) -> None:
        self.policy = options.policy
        self.pinned: frozenset[str] = frozenset()
        self.code_calls: set[str] = set()
        self._count_tokens = options.count_tokens

    def count(self, text: str) -> tuple[int, OffloadError | None]:
        """Return the tokens of a text; if the counter fails, an estimate and the error."""
        try:
            return self._count_tokens(text), None
        except Exception as error:  # noqa: BLE001 # a token counter may raise anything
            return estimate_tokens(text), failure("token_counter:", error, text)

    def facts(self, item: Item, message: int = 0) -> tuple[ItemFacts, OffloadError | None]:
        """Return the facts of an item in message `message`, and the token counter's error if it failed."""
        media = item.media
        tokens, problem = (media.tokens, None) if media else self.count(item.text)
        facts = unweighed(item, message).item._replace(
            bytes=media.bytes if media else self._bytes(item.text),
            tokens=tokens,
            is_error=item.is_error,
            is_pinned=item.tool_use_id in self.pinned,
            is_pending=item.is_pending,
            media_type=media.media_type if media else None,
            is_programmatic=item.tool_use_id in self.code_calls,
            is_report=item.is_report,
        )
        return facts, problem

    def decide_claim(self, decision: Decision, claim: Claim, proof: Proof) -> Decision:
        """Return the decision on an item that looks like a placeholder, given that of the policy."""
        if isinstance(proof, OffloadError):
            reason = f"could not check whether it is a placeholder: {proof}"
            return replace(decision, action="keep", reason=reason, is_below=False, is_exempt=True)
        if proof == "ours":
            return self.policy.decide(decision.item._replace(is_stored=True))
        if decision.item.is_pinned or decision.item.is_programmatic:
            return replace(decision, action="keep", is_below=False)
        ceiling = self.policy.max_view_tokens
        if claim.is_notice and (ceiling is None or decision.item.tokens <= ceiling):
            # The summary of another session: its text is all that the model has.
            return replace(decision, action="keep", reason=FOREIGN_NOTICE, is_below=False, is_exempt=True)
        return replace(decision, action="offload", reason=LOOK_ALIKE, is_below=False)

    def _bytes(self, text: str) -> int | None:
        return self.policy.bytes_of(text) if self.policy.counts_bytes else None
