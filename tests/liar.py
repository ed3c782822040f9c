"""A client in name alone, which says to a server what a test has it say."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from securefl.federation.lineage import Shown, beginning, over
from securefl.federation.total import Terms, state_digest
from securefl.network import bodies
from securefl.network.connect import connected
from securefl.network.frames import Frame
from securefl.network.party import ClientParty
from securefl.settings.digests import settings_digest

ANYTHING = dict.fromkeys(Frame, 10**7)


@dataclass
class Liar:
    """A client in name alone: `says` gives its frames for each that it hears."""

    party: ClientParty
    bundle: object
    says: object
    run_id: str = ""
    job_id: str = ""
    terms: Terms = field(default_factory=Terms)
    state: object = None
    lineage: str = ""
    sent: list = field(default_factory=list)

    async def run(self, server, patience_s):
        link = await connected(self.party.identity, self.bundle, "server", server, patience_s)
        try:
            digest = settings_digest(self.party.job.config)
            hello = bodies.Hello(settings=digest, age=self.bundle.age)
            await link.send(Frame.HELLO, hello.to_bytes())
            while True:
                received = await link.receive(ANYTHING)
                if received.frame is Frame.GOODBYE:
                    return
                self.hears(received)
                for frame, body in self.says(self, received):
                    await link.send(frame, body)
        finally:
            link.close()

    def hears(self, received):
        kinds = {Frame.ROUND: bodies.RoundBegins, Frame.QUESTION: bodies.QuestionBody}
        if received.frame is Frame.WELCOME:
            welcome = bodies.parsed(bodies.Welcome, received.body, "server")
            self.run_id, self.job_id = welcome.run, welcome.job
            self.state = self.party.job.algorithm.init(self.party.job.task.model)
        elif received.frame in kinds:
            head, tensors = bodies.apart(kinds[received.frame], received.body, "server")
            shown = []
            if received.frame is Frame.ROUND:
                self.terms = Terms(head.times, head.since)
                shown, tensors = bodies.shown_apart(head.shown, tensors, "server")
            known = None if head.whole else self.state
            self.state = bodies.read_state(tensors, self.state, known, head.round - 1)
            if received.frame is Frame.ROUND:
                begun = self.lineage if head.after else beginning(self.job_id)
                self.lineage = over(begun, [*shown, Shown(head.round, state_digest(self.state))])

    # What it may have to say: sealed and signed as an honest client's, of zeros.

    @property
    def plan(self):
        return self.party.plan(self.state)

    def message(self, spec, **changes):
        model = state_digest(self.state)
        about = {"state": self.terms.bind(self.lineage), "model": model} | changes
        values, round_number = {"x": torch.zeros(spec.n_values)}, self.state.round + 1
        made = self.party.client.contribute(self.run_id, round_number, spec, values, **about)
        self.sent.append(made)
        return Frame.MESSAGE, made

    def update(self):
        return [self.message(spec) for spec in self.plan.update]

    def number(self, name, value=1.0):
        round_number = self.state.round + 1
        made = self.party.client.send_number(self.run_id, round_number, name, value)
        return Frame.MESSAGE, made
