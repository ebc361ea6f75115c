"""Questions that connecting threads ask, shown over the current screen."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from textual.app import App

from runner.ids import short
from tui.dialogs.confirm import TrustScreen
from tui.dialogs.question import Question
from tui.dialogs.questions import QuestionGate
from tui.dialogs.secret import SecretScreen

if TYPE_CHECKING:
    from runner.api.questions import Doubt

Answer = TypeVar("Answer")


class AppPrompts:
    """`runner.api.questions.Questions` of the app: called from connecting threads, one question at a time.

    A question waits while the user types into an input, or answers another one; one that is open when the app ends is
    answered with no.
    """

    def __init__(self, app: App[None], questions: QuestionGate) -> None:
        self._app = app
        self._questions = questions
        self._turn = threading.Lock()

    def secret(self, host: str, question: str) -> str | None:
        """Ask for a password, a passphrase or another answer, which is not shown; None if the user gives up."""
        return self._ask(host, SecretScreen(host, question)) or None

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Ask whether to trust an unknown host key."""
        own = "Compare it with what the host says:\ncat /etc/ssh/ssh_host_*.pub | ssh-keygen -lf -"
        words = f"{key_type}\n{fingerprint}\n{own}"
        answer = self._ask(host, TrustScreen(f"{host} is unknown. Trust its key and remember it?", words, "trust"))
        return answer is True

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Ask whether a profile may be used; screens show all of it before."""
        return self._ask(str(doubt), TrustScreen("Use this profile?", str(doubt), "use"))

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Ask whether to log in to hosts that another host names."""
        words = f"It says that {short(run)} also runs on {', '.join(others)}"
        return self._ask(asked, TrustScreen("Log in there as well?", words, "log in"))

    def _ask(self, host: str, screen: Question[Answer]) -> Answer | None:
        answer: Future[Answer | None] = Future()
        with self._turn:
            put = False
            while not answer.done() and self._app.is_running:
                put = put or self._app.call_from_thread(self._questions.put, host, screen, answer.set_result)
                wait([answer], 0.2)
        return answer.result() if answer.done() else None
