"""What the parts of a member's control see of it: what it knows, and how they have that changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol

from transport.volatile.links.links import Links
from transport.volatile.protocol.commit import Action, State
from transport.volatile.protocol.view import Member, View
from transport.volatile.transfer.shelf import Shelf

P = ParamSpec("P")


class Agreement(Protocol):
    """One member's part in the agreement on views. All but `apply` is for its own thread."""

    member: Member
    links: Links
    shelf: Shelf

    members_min: int
    """The caller's steps wait for so many."""
    in_step: int
    """The thread of the caller's whose call for a step is not over; 0 where there is none."""

    @property
    def state(self) -> State:
        """What the member knows now."""

    @property
    def is_idle(self) -> bool:
        """Whether a change of the view need not wait for the end of a step."""

    def apply(
        self, rule: Callable[Concatenate[State, P], tuple[State, list[Action]]], *args: P.args, **named: P.kwargs
    ) -> list[Action]:
        """Replace the state by what a rule of `commit` makes of it, and have its actions carried out."""

    def read_view(self) -> None:
        """Enter the view that the register holds.

        Raises:
            RegisterLostError: it cannot be reached; of the kind `RegisterForgotError` where it has forgotten a view.
        """

    def look_soon(self) -> None:
        """Look once all mail is heard who asks to join, and what is next for those."""

    def enter(self, held: View) -> None:
        """Work in that view from now on, if it is newer.

        Raises:
            RegisterForgotError: it is another one of the same epoch.
        """
