"""The steps of a new account on its home page: which are done, and whether somebody hid them. Pure."""

from __future__ import annotations

import attrs


@attrs.frozen
class Step:
    """A step after the first email. `path`: where it is done, `link`: what the link there is called."""

    title: str
    why: str
    path: str
    link: str
    done: bool


@attrs.frozen
class Checklist:
    """`first`: whether each step to the first email is done. `hidden`: by this member."""

    first: tuple[bool, ...]
    then: tuple[Step, ...]
    hidden: bool

    @classmethod
    def of(
        cls, *, domain: bool, key: bool, sent: bool, delivered: bool, webhook: bool, teammate: bool, second_factor: bool, hidden: bool
    ) -> Checklist:  # fmt: skip
        """Each argument says whether something is there, or was done."""
        then = (
            Step("Add a webhook endpoint", "Tell your app what happens to each email.", "/dashboard/webhooks", "Add an endpoint", webhook),
            Step("Invite a teammate", "Somebody else can act when you’re away.", "/dashboard/settings", "Invite somebody", teammate),
            Step(
                "Set up two-factor authentication", "A stolen password alone isn’t enough to sign in.", "/dashboard/settings/security",
                "Set it up", second_factor,
            ),
        )  # fmt: skip
        return cls((domain, key, sent, delivered), then, hidden)

    @property
    def done(self) -> int:
        return sum(self.first) + sum(step.done for step in self.then)

    @property
    def steps(self) -> int:
        return len(self.first) + len(self.then)

    @property
    def started(self) -> bool:
        """Whether the first email was delivered, from a domain and with a key."""
        return all(self.first)

    @property
    def shown(self) -> bool:
        return not self.hidden and self.done < self.steps
