# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who was refused at the rendezvous, so that those who wait can be told.

An unauthenticated connection must not be able to end a job, so a refusal is no error. But a rank
that was started with another token is refused as well, and the others would wait for it without a
word: hence refusals are remembered, told to everybody as a warning, and repeated when time is up.

What is kept comes from strangers, who may come as often as they like: the first refusal, the last
address and a count for each rank that was claimed, and the same once for all who claimed none. No
text of theirs is kept.
"""

import dataclasses
from collections.abc import Iterable

__all__ = ["Refusals"]

_TOLD_AT_MOST = 8
_DESCRIBED_AT_MOST = 4


@dataclasses.dataclass
class _Refusal:
    text: str
    last_peer: str
    count: int = 1


class Refusals:
    """The refusals of one rendezvous. Not thread-safe.

    Args:
        world_size: number of ranks; bounds what is kept.

    Source: our choice; docs/security.md, "Hosts: the token".
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._by_claim: dict[int | None, _Refusal] = {}
        self._told: list[str] = []

    def note(self, peer: str, claimed_rank: int | None, reason: str) -> str | None:
        """Remembers one refusal.

        Args:
            peer: address of the stranger.
            claimed_rank: the rank that it says it is, if it got so far. Nothing proves it.
            reason: why it was refused: "it ..., expected ...", a text of ours.

        Returns:
            A sentence for the log and for all ranks; `None` if the like has been told before, or
            enough has.
        """
        claim = "" if claimed_rank is None else f" that claims to be rank {claimed_rank}"
        key = claimed_rank if claimed_rank in range(self._world_size) else None
        known = self._by_claim.get(key)
        if known is not None:
            known.count += 1
            known.last_peer = peer
            return None
        text = f"a connection from {peer}{claim} was refused: {reason}"
        self._by_claim[key] = _Refusal(text, peer)
        if len(self._told) >= _TOLD_AT_MOST:
            return None
        self._told.append(text)
        return text

    @property
    def told(self) -> tuple[str, ...]:
        """What `note` has returned so far."""
        return tuple(self._told)

    def describe(self, missing: Iterable[int]) -> str:
        """Returns what may explain that the `missing` ranks have not come; may be empty.

        Sentences, each with a blank before it: to be put behind the text of an error.
        """
        relevant = [self._by_claim[rank] for rank in missing if rank in self._by_claim]
        if None in self._by_claim:
            relevant.append(self._by_claim[None])
        sentences = []
        for refusal in relevant[:_DESCRIBED_AT_MOST]:
            more = ""
            if refusal.count > 1:
                more = f" ({refusal.count} times, the last from {refusal.last_peer})"
            sentences.append(f" {refusal.text[0].upper()}{refusal.text[1:]}{more}.")
        if len(relevant) > _DESCRIBED_AT_MOST:
            sentences.append(f" {len(relevant) - _DESCRIBED_AT_MOST} other ranks were refused too.")
        return "".join(sentences)
