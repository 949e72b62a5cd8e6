"""Moving sessions: from store to store, under another name, into a file and back."""

from offload.transfer._archive import Archive, export, import_
from offload.transfer._copy import Copied, Refused, copy, fork

__all__ = ["Archive", "Copied", "Refused", "copy", "export", "fork", "import_"]
