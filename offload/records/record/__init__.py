"""Header, counts, listing entry, ref and title: what is known of an item without its content."""

from offload.records.record.header import Header as Header, RecordInfo as RecordInfo
