"""The requests of a search on S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay import Proxy

from offload import Offloader

if TYPE_CHECKING:
    from conftest import Bucket

LINES = "".join(f"the job of step {n} wrote its row\n" for n in range(3000))
RECORDS = 12


def test_a_search_reads_each_new_record_once_and_the_next_process_all_of_them_at_once(
    s3_bucket: Bucket, proxy: Proxy
) -> None:
    given = {**s3_bucket.storage_options, "endpoint_url": proxy.url}
    url = f"{s3_bucket.url}/searched"
    writer = Offloader(url, session="s", storage_options=given)
    for n in range(RECORDS):
        writer.offload_text(f"{LINES}zebra{n}\n", tool_name="Bash", tool_use_id=f"t{n}")

    def requests_of(off: Offloader, query: str) -> tuple[int, int, int]:
        """Return the numbers of listings, of reads and of writes that a search sends."""
        proxy.requests.clear()
        off.search(query, limit=1)
        lists = sum("list-type=2" in path for _, path, _ in proxy.requests)
        return lists, proxy.methods.count("GET") - lists, proxy.methods.count("PUT")

    off = Offloader(url, session="s", storage_options=given)
    assert requests_of(off, "absent") == (3, RECORDS, 1)
    assert requests_of(off, "absent") == (1, 0, 0)
    assert requests_of(off, "zebra7")[1] <= 2
    writer.offload_text(f"{LINES}lion\n", tool_name="Bash", tool_use_id="new")
    assert requests_of(off, "absent") == (1, 1, 0)
    assert requests_of(Offloader(url, session="s", storage_options=given), "absent") == (2, 2, 0)
