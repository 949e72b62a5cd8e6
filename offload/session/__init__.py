"""The records of one session in one store: written once and read by ref."""

from offload.session.reader import Damage
from offload.session.session import Draft, Session

__all__ = [
    "Damage",
    "Draft",
    "Session",
]
