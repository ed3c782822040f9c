"""Every byte of a ledger is in the view of its receiver, and of nobody else but the outsider."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.report.views import OUTSIDER, Shows, view_of, views
from securefl.types import Kind

CLIENTS = [f"client-{number}" for number in (1, 2, 3, 10)]
PARTIES = [SERVER, AUTHORITY, *CLIENTS]
ENTRIES = st.builds(
    Entry,
    round=st.integers(1, 3),
    exchange=st.integers(0, 3),
    name=st.sampled_from(["update/parameters", "1/mean", "2/mean", "profile", "model/statistics"]),
    kind=st.sampled_from(Kind),
    sender=st.sampled_from(PARTIES),
    receiver=st.sampled_from(PARTIES),
    form=st.sampled_from(["plaintext", "ciphertext"]),
    n_values=st.integers(1, 10**6),
    bytes=st.integers(0, 10**9),
)
LEDGERS = st.lists(ENTRIES, max_size=40)


@given(ledger=LEDGERS)
def test_bytes_values_and_messages_add_up(ledger):
    """By receiver to the ledger's, field by field; the outsider sees all lengths."""
    *own, outsider = views(ledger)
    for found in (own, [outsider]):
        fields = [field for view in found for field in view.fields]
        assert sum(field.bytes for field in fields) == sum(e.bytes for e in ledger)
        assert sum(field.n_values for field in fields) == sum(e.n_values for e in ledger)
        assert sum(field.times for field in fields) == len(ledger)
    for view in own:
        received = [e for e in ledger if e.receiver == view.party]
        assert view.bytes == sum(e.bytes for e in received)
        assert {s for field in view.fields for s in field.senders} == {e.sender for e in received}
    assert outsider.party == OUTSIDER
    assert {field.shows for field in outsider.fields} <= {Shows.LENGTH}


@given(ledger=LEDGERS)
def test_parties_stand_in_order_and_once(ledger):
    """Server, authority, then clients by number."""
    *own, _ = [view.party for view in views(ledger)]
    assert own == [party for party in PARTIES if any(e.receiver == party for e in ledger)]


@given(ledger=LEDGERS)
def test_only_plaintext_of_a_client_shows_it(ledger):
    """A party reads single clients where one has sent it something in the clear, and only there."""
    for party in PARTIES:
        received = [e for e in ledger if e.receiver == party]
        clear = [e for e in received if e.sender in CLIENTS and e.form == "plaintext"]
        read = view_of(party, received).reads_single_clients
        assert sum(field.bytes for field in read) == sum(e.bytes for e in clear)
        assert sum(field.n_values for field in read) == sum(e.n_values for e in clear)
