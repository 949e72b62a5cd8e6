"""The records of one session in one store: written once and read by ref."""

from offload.records.session.drafts import Draft
from offload.records.session.reader import Damage
from offload.records.session.session import Session

__all__ = [
    "Damage",
    "Draft",
    "Session",
]
