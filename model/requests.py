"""What a log has said of its requests: what they ask for, the slots they hold, how far they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.model.facts import Admitted, Advanced, Released
from kvproof.model.scenario import (
    Abort,
    BadFileError,
    Finish,
    Prompt,
    Retract,
    Submit,
    prompt_len,
)
from kvproof.model.verdict import Lease
from kvproof.spec.indices import Occupancy
from kvproof.spec.schedule import next_occupancy

NOBODY = Occupancy(0)


@dataclass(slots=True)
class Requests:
    """Requests by name, those that wait and those that hold a slot.

    Attributes:
        operation: the one under way.
        prompts: of all that may be admitted, or are.
        leases: the live ones.
        computed: tokens that each live request has computed.
        prefilling: live requests that do not decode yet.
        newest: each request's last occupancy. Kept until the snapshot after the release: a request
            publishes its answer as it ends.
    """

    operation: object = None
    prompts: dict[str, Prompt] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    prefilling: set[str] = field(default_factory=set)
    newest: dict[str, Occupancy] = field(default_factory=dict)
    # One that was retracted waits with its answer behind its prompt.
    _retracted_len: dict[str, int] = field(default_factory=dict)
    _former_prompt: Prompt | None = None
    _occupancy: Occupancy = NOBODY

    def begin(self, operation: object) -> None:
        """A step begins."""
        self.operation = operation
        if isinstance(operation, Submit):
            self._former_prompt = self.prompts.get(operation.request)
            self.prompts[operation.request] = operation.prompt
        elif isinstance(operation, Abort) and operation.request not in self.leases:
            self.prompts.pop(operation.request, None)  # it waited, and will not be admitted
            self._retracted_len.pop(operation.request, None)

    def skipped(self) -> None:
        """The operation was not played."""
        if isinstance(self.operation, Submit):
            # The name is taken: its request keeps the prompt that it came with.
            if self._former_prompt is None:
                del self.prompts[self.operation.request]
            else:
                self.prompts[self.operation.request] = self._former_prompt

    def prompt_len(self, request: str) -> int:
        """Tokens that a request's next prefill is about, its answer before a retract included."""
        return self._retracted_len.get(request) or prompt_len(self.prompts.get(request, ()))

    def occupy(self, fact: Admitted, step: int) -> Lease:
        """The occupancy that begins; it is not live before `admitted`.

        Raises:
            BadFileError: nobody knows what the request asks for.
        """
        if not self.prompts.get(fact.request):
            raise BadFileError(
                f"step {step + 1}: request {fact.request} is admitted and was never "
                "submitted with a prompt"
            )
        self._occupancy = next_occupancy(self._occupancy)
        return Lease(
            occupancy=self._occupancy,
            request=fact.request,
            slot=fact.slot,
            prompt_len=fact.prompt_len,
            matched_len=fact.matched_len,
            step=step,
        )

    def admitted(self, lease: Lease) -> None:
        """An occupancy is live."""
        self.leases[lease.request] = lease
        self.newest[lease.request] = Occupancy(lease.occupancy)
        self.computed[lease.request] = lease.matched_len

    def advanced(self, fact: Advanced) -> None:
        """A live request has computed more."""
        if fact.prefilling:
            self.prefilling.add(fact.request)
        else:
            self.prefilling.discard(fact.request)
        self.computed[fact.request] = fact.computed_len

    def released(self, fact: Released) -> None:
        """A request gave its slot back."""
        self.leases.pop(fact.request, None)
        computed = self.computed.pop(fact.request, 0)
        self.prefilling.discard(fact.request)
        operation = self.operation
        ends = isinstance(operation, Retract | Finish | Abort) and (
            operation.request == fact.request
        )
        if ends and isinstance(operation, Retract):  # it waits again, with the same prompt
            self._retracted_len[fact.request] = computed + 1
            return
        self._retracted_len.pop(fact.request, None)
        if ends:
            self.prompts.pop(fact.request, None)
