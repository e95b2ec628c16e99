"""What the API server let pass without the webhook is counted once, said, and after a quiet time said no more."""

from __future__ import annotations

from lattice.daemon.clock import ManualClock
from lattice_controllers.operator.fail_open import CONDITION, FailOpen, passed
from lattice_controllers.operator.metrics import OperatorMetrics

NOW = "2027-01-15T08:00:00Z"


def page(mutating: int, validating: int, others: int = 7) -> str:
    name = "apiserver_admission_webhook_fail_open_count"
    return (
        f"# TYPE {name} counter\n"
        f'{name}{{name="mutate.lattice.dev",type="admit"}} {mutating}\n'
        f'{name}{{name="validate.lattice.dev",type="validating"}} {validating}\n'
        f'{name}{{name="other.example.org",type="validating"}} {others}\n'
        'apiserver_admission_webhook_rejection_count{name="validate.lattice.dev"} 99\n'
    )


async def unread() -> str:
    return ""


def test_only_requests_that_passed_lattices_webhooks_count() -> None:
    assert passed(page(2, 3)) == 5
    assert passed("") == 0


class Queue:
    """The queue of the LatticeConfig: what is added is kept."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def add(self, key: str) -> None:
        self.told.append(key)


def test_what_passes_is_said_until_nothing_has_passed_for_ten_minutes() -> None:
    clock, queue, measured = ManualClock(), Queue(), OperatorMetrics()
    told, seen = queue.told, FailOpen(unread, clock, measured, queue)

    def state() -> tuple[str, str, str]:
        (found,) = (entry for entry in seen.stated((), 1, NOW) if entry.type == CONDITION)
        return found.status, found.reason, found.message

    assert seen.stated((), 1, NOW) == ()
    seen.see(page(100, 100))  # before this operator led: nobody knows when
    assert (state()[:2], told) == (("True", "WebhookAnswers"), [])
    seen.see(page(101, 102))
    assert state()[:2] == ("False", "WebhookFailedOpen")
    assert state()[2].startswith("3 requests have passed the API server since ")
    seen.see(page(1, 0))  # the API server has started again
    assert state()[2].startswith("4 requests have")
    clock.advance(599)
    seen.see(page(1, 0))
    assert (state()[0], len(told)) == ("False", 2)
    clock.advance(1)
    seen.see(page(1, 0))
    assert (state()[0], len(told)) == ("True", 3)
    assert measured.registry.get_sample_value("lattice_admission_failed_open_total") == 4
