"""The processes of a run: they meet, check that they are of one kind, agree between rounds, and notice who is gone.

JAX brings a service in process 0 in which all of them leave short texts. Each leaves a sign of life there every second,
and looks at those of the others: one that is silent for `SILENCE` seconds, or has said why it stops, ends all of them
with a sentence that names it. JAX itself would wait for ever, or abort with a trace of its C++ code.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

from coterie.errors import CoterieError
from coterie.processes.address import Address

__all__ = ["BEATS", "LEAVING", "SENTENCE", "SILENCE", "Group"]

BEAT, SILENCE = 1.0, 30.0  # seconds
BEATS = "coterie/beat/"
SENTENCE = 500  # letters
LEAVING = 5.0  # seconds in which the others may read why this process stops
HANGING_UP = 0.5  # seconds in which those that have done their part disconnect from JAX's service in process 0
COORDINATOR_GONE = "process 0 has ended, or cannot be reached any more"


class Group:
    """The processes of this run, after they have met.

    Attributes:
        index: the number of this process.
        count: how many there are.
        agreed: whether all of them have agreed to stop before the end, and none has to be told.
    """

    def __init__(self, address: Address, client: Any):
        self.index, self.count, self.agreed = address.process, address.processes, False
        self._client, self._number, self._before = client, 0, ""
        self._others = [other for other in range(self.count) if other != self.index]
        self._over = threading.Event()
        self._seen: dict[int, tuple[str, float]] = {}

    # -- texts ----------------------------------------------------------------------------------------------------

    def exchange(self, what: str, text: str = "") -> list[str]:
        """Return everyone's text, in the order of the processes; all must ask for the same things in the same order."""
        self._number += 1
        place = f"coterie/said/{self._number}-{what}"
        self._client.key_value_set(f"{place}/{self.index}", f".{text}")  # a text may be empty, a value may not
        said = [self._wait_for(f"{place}/{other}")[1:] for other in range(self.count)]
        if self._before:  # whoever has come here has read everything that was said before
            self._client.key_value_delete(f"{self._before}/{self.index}")
        self._before = place
        return said

    def _wait_for(self, key: str) -> str:
        """Wait for a text, for as long as the others give signs of life: one may be loading its data."""
        while True:
            try:
                return str(self._client.blocking_key_value_get(key, 1000))
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    self.wait_for_news()
                    raise CoterieError(f"process {self.index} has lost the coordinator, process 0") from None

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set in any process."""
        said = self.exchange("flags", "".join("1" if flag else "0" for flag in flags))
        return tuple(any(text[place] == "1" for text in said) for place in range(len(flags)))

    def meet(self, what: str) -> None:
        """Wait until all processes have come here."""
        self.exchange(what)

    def refuse_another_count(self) -> None:
        """Refuse a process that was told another number of processes than process 0: it would wait for others."""
        if self.index == 0:
            self._client.key_value_set("coterie/count", str(self.count))
        count = self._wait_for("coterie/count")
        if count != str(self.count):
            raise CoterieError(
                f"process {self.index} has --processes {self.count} and process 0 has {count}: all processes of a run "
                "need the same"
            )

    def refuse_differences(self, what: dict[str, str]) -> None:
        """Refuse processes of which something differs from process 0, by name: the versions, the config."""
        for name, own in what.items():
            said = self.exchange(name, own)
            for other, text in enumerate(said):
                if text != said[0]:
                    raise CoterieError(
                        f"process {other} has another {name} than process 0 ({text} and {said[0]}): all processes of a "
                        "run need the same"
                    )

    # -- who is still there ---------------------------------------------------------------------------------------

    def take_number(self, taken: str) -> None:
        """Take this process's number; if another one has it, end the process with the sentence `taken`.

        The other one may be this process's predecessor, which was lost and whose silence nobody has noticed yet. Then
        all others are told, so that a cluster that starts lost processes again has them all start soon.
        """
        try:
            self._client.key_value_set(f"coterie/number/{self.index}", "taken")
        except RuntimeError:  # it must not speak for the process that has this number, nor sign it off
            if not self._is_heard():
                self._leave("stopped:it was lost and started again")
                taken = (
                    f"process {self.index} was lost and started again, so the others are told to stop; start all of "
                    "them, and they continue"
                )
            print(f"coterie: {taken}", file=sys.stderr, flush=True)
            os._exit(2)

    def _is_heard(self) -> bool:
        """Return whether the process that has this one's number gives signs of life."""
        before, until = self._beats().get(self.index, ""), time.monotonic() + 4 * BEAT
        while time.monotonic() < until:
            time.sleep(BEAT / 4)
            if self._beats().get(self.index, "") != before:
                return True
        return before == "done"

    def _beats(self) -> dict[int, str]:
        """Return the latest sign of life of each process."""
        said = dict(self._client.key_value_dir_get(BEATS))
        return {int(key.removeprefix(BEATS)): text for key, text in said.items()}

    def last_words(self, meeting: str) -> str:
        """Return why this process is being aborted: process 0 is gone, or else tell the others."""
        time.sleep(0.2)  # the system may still be closing its ports
        host, _, port = meeting.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
        except OSError:
            return f"{COORDINATOR_GONE}; process {self.index} ends, too"
        telling = threading.Thread(target=self._leave, args=("stopped:a library has aborted it",), daemon=True)
        telling.start()
        telling.join(1)
        return f"process {self.index} was aborted by a library; what it printed before may say why"

    def watch(self) -> None:
        """Begin to give signs of life, and to look at those of the others."""
        threading.Thread(target=self._watch, daemon=True, name="coterie-watch").start()

    def _watch(self) -> None:
        beats = unheard = 0
        while not self._over.wait(BEAT):
            beats += 1
            try:
                self._client.key_value_set(f"{BEATS}{self.index}", str(beats), allow_overwrite=True)
                said = self._beats()
                unheard = 0
            except Exception:  # the service is in process 0
                unheard += 1
                if unheard >= 2 and self.index != 0 and not self._over.is_set():
                    self._end(COORDINATOR_GONE)
                continue
            self._look(said)

    def _look(self, said: dict[int, str]) -> None:
        now = time.monotonic()
        for other in self._others:
            text = said.get(other, "")
            if text.startswith("stopped:"):
                self._end(f"process {other} has stopped: {text.removeprefix('stopped:')}")
            if text == "done":
                continue
            before, since = self._seen.get(other, ("", now))
            self._seen[other] = (text, since if text == before else now)
            if text == before and now - since > SILENCE:
                self._end(f"process {other} has given no sign of life for {SILENCE:.0f} s")

    def _end(self, sentence: str) -> None:
        """End this process: another one is gone, and whatever the main thread waits for will not come."""
        if self._over.is_set():
            return
        with contextlib.suppress(Exception):
            self._leave(f"stopped:{sentence}")
        with contextlib.suppress(OSError, ValueError):
            print(f"coterie: {sentence}; process {self.index} ends, too", file=sys.stderr, flush=True)
        os._exit(1)

    def wait_for_news(self) -> None:
        """Wait until the watch has found out who is gone, which ends this process, or for as long as that may take."""
        self._over.wait(SILENCE + 10)

    def leave(self, sentence: str | None = None) -> None:
        """Tell the others that this process has done its part, or why it stops; process 0 waits for them."""
        if self._over.is_set():
            return
        self._over.set()
        with contextlib.suppress(Exception):  # nobody is there any more
            self._leave("done" if sentence is None else f"stopped:{sentence}")
            if self.index > 0:
                self._hang_up()
                return
            until = time.monotonic() + LEAVING
            while time.monotonic() < until:
                said = self._beats()
                ended = [said.get(other, "") for other in self._others]
                if all(text == "done" or text.startswith("stopped:") for text in ended):
                    time.sleep(HANGING_UP)
                    break
                time.sleep(0.05)

    def _hang_up(self) -> None:
        """Disconnect from JAX's service now: at the end of the program process 0 may be gone, and JAX would abort."""
        import jax

        jax.distributed.shutdown()

    def _leave(self, text: str) -> None:
        self._client.key_value_set(f"{BEATS}{self.index}", text, allow_overwrite=True)
