"""The records of one session in one store: written once and read by ref."""

from offload.records.session.drafts import Draft as Draft
from offload.records.session.reader import Damage as Damage
from offload.records.session.session import Session as Session
