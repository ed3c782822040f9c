"""Nobody goes on with a connection but the caller that has begun it, where it was."""

import asyncio
import os
import struct
from contextlib import asynccontextmanager, suppress

import pytest
from processes import ANY_PORT, SERVER, Site

import securefl.network.resumable
from securefl.errors import PeerError
from securefl.network.connect import Address, connected, listening
from securefl.network.frames import Frame
from securefl.network.identity import name_of
from securefl.network.refusals import part
from securefl.network.resumable import (
    HEAD_BYTES,
    KEPT_BYTES,
    Broken,
    Resumable,
    read_place,
)
from securefl.network.stream import CHUNK_BYTES, CLOSED

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
PLACE = struct.Struct(">32sQ")
TAKEN = struct.Struct(">Q")
REFUSED = bytes(PLACE.size)
HUNG_UP = TAKEN.pack(2**64 - 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation to look at."""
    return Site(tmp_path_factory.mktemp("made") / "site", encrypt="none")


class Raw:
    """An end that keeps what it is given, and says nothing by itself."""

    def __init__(self):
        self.token, self.place, self.began = bytes(32), bytes(PLACE.size), b""

    def introduce(self, stream, listener, place):
        self.stream, self.listener, self.began = stream, listener, place


async def raw(made, at, name, place=bytes(PLACE.size)):
    """A stream on which this member has said its place; its answer is in `began`."""
    end = Raw()
    end.place = place
    about = made.identity(name), made.bundle("client"), "server"
    await at._reached(end, *about)
    return end


@asynccontextmanager
async def heard(made, admitted=None):
    """A server that echoes frames; gives its address, its links, and what it says."""
    links, said = [], []

    async def echo(link):
        links.append(link)
        with suppress(PeerError):
            while True:
                await link.send(Frame.MESSAGE, (await link.receive({Frame.MESSAGE: 2**22})).body)
        await link.ended()

    def named(certificate):
        return name_of(made.bundle("server").transport_holder, certificate, "client")

    hub = made.identity(SERVER, "server")
    door = await listening(hub, admitted or named, ANY_PORT, echo, said.append)
    try:
        yield Address.parse(door.at), links, said
    finally:
        for link in links:
            link._stream.part(PeerError("the test is over"))  # no cut is waited out
        await door.stop()


async def echoed(link, body=b"hello"):
    await link.send(Frame.MESSAGE, body)
    return (await link.receive({Frame.MESSAGE: 2**22})).body


async def anything(end):
    """What comes, until the stream is over, whose error is raised."""
    while True:
        await end.stream.read()


async def frame_on(end):
    """The next chunk that says more than what was taken."""
    while len(chunk := await end.stream.read()) == HEAD_BYTES:
        pass
    return chunk


def cut(link):
    """Cut its connection, and let neither end say so."""
    link._stream._stream.close()


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_stolen_token_is_of_no_use_to_another_member(made):
    """Nor does it disturb the connection, whose caller goes on afterwards."""

    async def scenario():
        async with heard(made) as (at, links, said):
            alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            assert await echoed(alice) == b"hello"
            token = alice._stream.token
            for n_arrived in (0, 1, 2):
                mallory = await raw(made, at, "bob", PLACE.pack(token, n_arrived))
                assert mallory.began == REFUSED
                mallory.stream.close()
            await until(lambda: any("bob: has the token of a connection" in line for line in said))
            assert not alice.lost
            assert len(links) == 1
            cut(alice)
            assert await echoed(alice, b"again") == b"again"
            assert any("alice has called again after a cut" in line for line in said)
            assert len(links) == 1
            alice.close()

    asyncio.run(scenario())


def test_who_was_revoked_meanwhile_does_not_go_on(made, monkeypatch):
    """The door looks at the caller anew, as at one that begins."""
    monkeypatch.setattr(securefl.network.resumable, "GRACE_S", 0.5)
    revoked = []

    def admitted(_certificate):
        if revoked:
            raise PeerError("alice: is no member any more")
        return "alice"

    async def scenario():
        async with heard(made, admitted) as (at, links, said):
            alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            assert await echoed(alice) == b"hello"
            revoked.append(1)
            cut(alice)
            with pytest.raises(PeerError, match="has this connection no more"):
                await echoed(alice)
            await until(lambda: links[0].lost)
            assert any("alice: is no member any more" in line for line in said)

    asyncio.run(scenario())


GARBAGE = {
    "nothing of a place": b"\x01",
    "too short": bytes(PLACE.size - 1),
    "too long": bytes(PLACE.size + 1),
    "as long as a chunk may be": b"\xff" * CHUNK_BYTES,
    "an unknown token": PLACE.pack(b"\x07" * 32, 0),
    "an unknown token, and a number": PLACE.pack(b"\x07" * 32, 2**64 - 1),
    "a beginning where chunks have arrived": PLACE.pack(bytes(32), 1),
    "random": os.urandom(PLACE.size),
}


@pytest.mark.parametrize("place", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_place_of_a_place_is_refused(made, place):
    """Before anything of it is looked at but its length; others go on."""

    async def scenario():
        async with heard(made) as (at, links, said):
            alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            with suppress(PeerError):
                carol = await raw(made, at, "carol", place)
                assert carol.began == REFUSED
            await until(lambda: any(line.startswith("Refused: ") for line in said))
            assert await echoed(alice) == b"hello"
            assert [link.lost for link in links] == [False] + [True] * (len(links) - 1)
            alice.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("n_arrived", [0, 3, 2**64 - 1])
def test_ends_that_disagree_on_numbers_part_with_a_reason(made, n_arrived):
    """The caller says that fewer chunks have arrived than it took, or more than were sent."""

    async def scenario():
        async with heard(made) as (at, links, said):
            end = await raw(made, at, "alice")
            token, _ = read_place(end.began)
            hello = struct.pack(">BI", Frame.MESSAGE, 5) + b"hello"
            for n_taken in (0, 1):  # the second frame says that the first answer was taken
                await end.stream.write(TAKEN.pack(n_taken) + hello)
                assert await end.stream.read() == TAKEN.pack(n_taken + 1) + hello
            again = await raw(made, at, "alice", PLACE.pack(token, n_arrived))
            assert again.began == REFUSED
            await until(lambda: links[0].lost)
            with pytest.raises(PeerError, match=r"says that \d+ chunks have arrived, of 2"):
                await links[0].send(Frame.MESSAGE)
            reason = f"says that {n_arrived} chunks have arrived"
            await until(lambda: any(reason in line for line in said))
            for each in (end, again):
                each.stream.close()

    asyncio.run(scenario())


CHUNKS = {
    "no chunk": (b"\x00" * (HEAD_BYTES - 1), "are no chunk"),
    "more taken than sent": (TAKEN.pack(7) + b"x", "has taken 7 chunks, of 0 sent"),
}


@pytest.mark.parametrize("what", CHUNKS)
def test_a_chunk_that_none_is_ends_the_connection_without_a_grace(made, what):
    chunk, why = CHUNKS[what]

    async def scenario():
        async with heard(made) as (at, links, _):
            end = await raw(made, at, "alice")
            await end.stream.write(chunk)
            await until(lambda: links and links[0].lost)
            with pytest.raises(PeerError, match=why):
                await links[0].send(Frame.MESSAGE)
            end.stream.close()

    asyncio.run(scenario())


def test_who_sends_more_than_was_taken_is_hung_up_on(made):
    """What a listener holds of a caller that nobody reads from is bounded, in small chunks too."""

    async def nobody_reads(link):
        held.append(link)
        await link.ended()

    held = []

    async def scenario(size):
        held.clear()
        hub = made.identity(SERVER, "server")
        door = await listening(hub, lambda _: "alice", ANY_PORT, nobody_reads, lambda _line: None)
        end = await raw(made, Address.parse(door.at), "alice")
        with suppress(PeerError):
            for _ in range(2 * KEPT_BYTES // size):
                await end.stream.write(TAKEN.pack(0) + bytes(size))
        await until(lambda: held[0].lost)
        with pytest.raises(PeerError, match="sends more than"):
            await held[0].send(Frame.MESSAGE)
        unread = held[0]._stream._unread
        assert sum(map(len, unread)) <= KEPT_BYTES + 2 * CHUNK_BYTES
        end.stream.close()
        await door.stop()

    for size in (CHUNK_BYTES, 512):
        asyncio.run(scenario(size))


def test_a_sender_waits_where_nobody_takes_what_it_sends(made):
    """And keeps no more than the bound; it goes on once somebody does."""

    async def scenario():
        links = []

        async def slow(link):
            links.append(link)
            await link.ended()

        hub = made.identity(SERVER, "server")
        door = await listening(hub, lambda _: "alice", ANY_PORT, slow, lambda _line: None)
        at = Address.parse(door.at)
        alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
        sending = asyncio.create_task(alice.send(Frame.MESSAGE, bytes(5 * KEPT_BYTES)))
        await asyncio.sleep(0.3)
        assert not sending.done()
        assert alice._stream._kept_bytes <= KEPT_BYTES + 2 * CHUNK_BYTES
        received = await links[0].receive({Frame.MESSAGE: 5 * KEPT_BYTES})
        await sending
        assert len(received.body) == 5 * KEPT_BYTES
        alice.close()
        await door.stop()

    asyncio.run(scenario())


def test_the_newest_stream_of_a_connection_is_the_one_that_lives(made):
    """Two calls with one token: what comes on the older one afterwards counts for nothing."""

    async def scenario():
        async with heard(made) as (at, links, _):
            old = await raw(made, at, "alice")
            token, _ = read_place(old.began)
            new = await raw(made, at, "alice", PLACE.pack(token, 0))
            assert read_place(new.began) == (token, 0)
            hello = struct.pack(">BI", Frame.MESSAGE, 5) + b"hello"
            with suppress(PeerError):
                await old.stream.write(TAKEN.pack(0) + hello)
            with pytest.raises(PeerError):
                await anything(old)
            await new.stream.write(TAKEN.pack(0) + hello)
            assert await frame_on(new) == TAKEN.pack(1) + hello
            assert len(links) == 1
            for end in (old, new):
                end.stream.close()

    asyncio.run(scenario())


def test_what_is_sent_again_is_the_same_bytes(made):
    """Nothing is made anew: a repeat tells nothing."""

    async def scenario():
        async with heard(made) as (at, _, __):
            end = await raw(made, at, "alice")
            token, _ = read_place(end.began)
            for number in range(3):
                body = os.urandom(100)
                frame = struct.pack(">BI", Frame.MESSAGE, 100) + body
                await end.stream.write(TAKEN.pack(0) + frame)
                first = await frame_on(end)
                assert first[HEAD_BYTES:] == frame
                end.stream.close()
                end = await raw(made, at, "alice", PLACE.pack(token, number))
                assert read_place(end.began) == (token, number + 1)
                assert await frame_on(end) == first
            end.stream.close()

    asyncio.run(scenario())


def test_who_was_killed_and_begins_anew_ends_what_was_cut(made):
    """It has no token, and does not wait for the grace of its former life."""

    async def scenario():
        async with heard(made) as (at, links, _):
            killed = await raw(made, at, "alice")
            other = await connected(made.identity("bob"), made.bundle("client"), "server", at, 5)
            killed.stream.close()
            await asyncio.sleep(0.1)
            assert not any(link.lost for link in links)
            anew = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            await until(lambda: links[0].lost)
            with pytest.raises(PeerError, match="and it has begun another"):
                await links[0].send(Frame.MESSAGE)
            assert await echoed(anew) == b"hello"
            assert await echoed(other) == b"hello"
            for link in (anew, other):
                link.close()

    asyncio.run(scenario())


def test_a_caller_that_is_not_let_in_ends_nothing_that_was_cut(made):
    """As one of its name whose certificate was revoked: whoever was cut goes on."""
    let_in = True

    def named(certificate):
        if not let_in:
            raise PeerError("alice is revoked")
        return name_of(made.bundle("server").transport_holder, certificate, "client")

    async def scenario():
        nonlocal let_in
        async with heard(made, named) as (at, links, said):
            alice = await raw(made, at, "alice")
            token, _ = read_place(alice.began)
            alice.stream.close()
            await asyncio.sleep(0.1)
            let_in = False
            await raw(made, at, "alice")
            await until(lambda: any("is revoked" in line for line in said))
            assert not links[0].lost
            let_in = True
            again = await raw(made, at, "alice", PLACE.pack(token, 0))
            assert read_place(again.began) == (token, 0)
            again.stream.close()

    asyncio.run(scenario())


def test_last_words_outlive_a_cut(made):
    """Of a listener that hangs up while nobody is there: the caller comes back for them."""

    async def scenario():
        async with heard(made) as (at, links, _):
            alice = await raw(made, at, "alice")
            token, _ = read_place(alice.began)
            alice.stream.close()
            await until(lambda: links[0]._stream.is_cut)
            await part(links[0], "all is done")
            back = await raw(made, at, "alice", PLACE.pack(token, 0))
            assert read_place(back.began) == (token, 0)
            assert b"all is done" in await frame_on(back)
            assert await back.stream.read() == HUNG_UP
            await back.stream.write(HUNG_UP)
            await until(lambda: links[0]._stream.parted)
            assert (await raw(made, at, "alice", PLACE.pack(token, 1))).began == REFUSED

    asyncio.run(scenario())


def test_a_caller_hears_them_by_itself_and_says_its_own(made):
    """Both ends know then that all is said: neither waits for the other's grace."""

    async def scenario():
        async with heard(made) as (at, links, _):
            alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            cut(alice)
            await until(lambda: links[0]._stream.is_cut)
            await part(links[0], "all is done")
            said = await alice.receive({Frame.GOODBYE: 4096})
            assert b"all is done" in said.body
            async with asyncio.timeout(2):
                await alice.finish()
                await links[0].finish()
            assert alice._stream.parted
            assert links[0]._stream.parted

    asyncio.run(scenario())


class Pipe:
    """One end of a stream in memory; what a lossy one writes is gone."""

    def __init__(self):
        self.read_from, self.write_to, self.lossy = asyncio.Queue(), None, False

    async def read(self):
        if (chunk := await self.read_from.get()) is None:
            raise PeerError("cut")
        return chunk

    async def write(self, chunk):
        if not self.lossy:
            self.write_to.put_nowait(chunk)
        await asyncio.sleep(0)

    def close(self):
        pass


def piped(caller, listener):
    """Have both go on over a new stream; returns its ends."""
    one, other = Pipe(), Pipe()
    one.write_to, other.write_to = other.read_from, one.read_from
    places = caller._n_arrived, listener._n_arrived
    for end, pipe, n_there in ((caller, one, places[1]), (listener, other, places[0])):
        end.go_on(pipe, n_there)
        CARRYING.append(asyncio.ensure_future(end.carry(pipe)))
    return one, other


CARRYING = []
"""Tasks, which the event loop alone does not hold."""


@pytest.mark.parametrize("noticed", [True, False])
def test_what_was_taken_is_told_again_after_a_cut(noticed):
    """Whoever has not noticed the cut itself may have told it in vain; else the sender stalls."""

    async def scenario():
        caller, listener = Resumable(b"t" * 32), Resumable(b"t" * 32)
        first, at_listener = piped(caller, listener)
        at_listener.lossy = True
        chunks = [bytes([i]) * (CHUNK_BYTES - 1000) for i in range(12)]

        async def write():
            for chunk in chunks:
                await caller.write(chunk)

        writing = asyncio.ensure_future(write())
        taken = [await listener.read() for _ in range(5)]
        await asyncio.sleep(0.1)
        assert not writing.done()
        first.read_from.put_nowait(None)
        if noticed:
            at_listener.read_from.put_nowait(None)
        await asyncio.sleep(0.1)
        piped(caller, listener)
        async with asyncio.timeout(5):
            taken += [await listener.read() for _ in range(7)]
            await writing
        assert taken == chunks
        for task in CARRYING:
            task.cancel()
        CARRYING.clear()

    asyncio.run(scenario())


def test_who_says_again_and_again_what_it_has_taken_is_hung_up_on(made):
    """Such chunks carry nothing, and would cost the listener as much as it has."""

    async def scenario():
        async with heard(made) as (at, links, _):
            alice = await raw(made, at, "alice")
            with suppress(PeerError):
                for _ in range(100):
                    await alice.stream.write(TAKEN.pack(0))
            await until(lambda: links[0].lost)
            with pytest.raises(PeerError, match="again and again"):
                await links[0].send(Frame.MESSAGE)

    asyncio.run(scenario())


def test_a_sender_of_small_chunks_is_told_that_they_were_taken(made, monkeypatch):
    """They take memory beside their bytes, counted at both ends: else it would wait for good."""
    monkeypatch.setattr(securefl.network.resumable, "KEPT_BYTES", 2**16)
    monkeypatch.setattr(securefl.network.resumable, "UNTOLD_BYTES", 2**15)
    heard_of = 0

    async def listen(link):
        nonlocal heard_of
        with suppress(PeerError):
            while True:
                await link.receive({Frame.DONE: 0})
                heard_of += 1

    async def scenario():
        hub = made.identity(SERVER, "server")
        door = await listening(hub, lambda _: "alice", ANY_PORT, listen, lambda _line: None)
        about = made.identity("alice"), made.bundle("client"), "server"
        alice = await connected(*about, Address.parse(door.at), 5)
        async with asyncio.timeout(20):
            for _ in range(5000):
                await alice.send(Frame.DONE)
        await alice.finish()
        await until(lambda: heard_of == 5000)
        await door.stop()

    asyncio.run(scenario())


def test_an_end_that_hangs_up_is_no_cut(made):
    """Its peer is told at once, and hears it out."""

    async def scenario():
        async with heard(made) as (at, links, said):
            alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            await alice.send(Frame.MESSAGE, b"last words")
            await alice.finish()
            await until(lambda: links[0].lost)
            with pytest.raises(PeerError, match=CLOSED):
                await links[0].send(Frame.MESSAGE)
            assert said == []

    asyncio.run(scenario())


def test_a_listener_that_has_lost_its_memory_ends_the_callers_connection(made):
    """As a server that was started again: the caller joins anew."""

    async def scenario():
        async with heard(made) as (at, _, __):
            alice = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
            assert await echoed(alice) == b"hello"
            alice._stream.token = os.urandom(32)
            cut(alice)
            with pytest.raises(PeerError, match="has this connection no more"):
                await echoed(alice)

    asyncio.run(scenario())


@pytest.mark.parametrize("token", [b"\x01" * 32, b"\x02" * 32])
@pytest.mark.parametrize("n_there", [1, 2**64 - 1])
def test_a_caller_believes_no_place_that_cannot_be(token, n_there):
    """Of a listener that says that chunks have arrived, of none that were sent."""
    end = Resumable()
    end.token = b"\x01" * 32
    with pytest.raises(Broken):
        end.introduce(None, None, PLACE.pack(token, n_there))
    assert end.over
