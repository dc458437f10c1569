"""The order in which the limits of launcher and supervisors must stand."""

import pytest

from sirtaki.job.protocol import time_limits as limits

ORDER = {
    "a rank answers before the launcher shows the status without it": (limits.STATUS_OF_RANK, limits.STATUS_OF_ALL),
    "a rank that is gone is reported before the job is ended": (limits.WAIT_FOR_PROGRAM, limits.CONSEQUENCES),
    "the supervisor of a failed rank stays until the others have reported": (limits.CONSEQUENCES, limits.LINGER),
    "and until they have been asked to end": (limits.CONSEQUENCES + limits.BEFORE_ASKING, limits.LINGER),
    "a program that has left ends with its own code": (limits.BEFORE_ASKING, limits.LEAVE_BY_ITSELF),
    "a program is asked to end before it is killed": (limits.BEFORE_ASKING, limits.LEFTOVERS),
    "orphans are ended before mpiexec is asked to end": (limits.ORPHANED, limits.TIDY_UP),
    "the reminder comes within the grace": (limits.REMIND, limits.GRACE),
    "a supervisor kills its program before it is given up itself": (limits.AFTER_GRACE, limits.UNANSWERED),
    "a process that has failed is asked to end before it is given up": (limits.END_BY_ITSELF, limits.UNANSWERED),
    "a host of an elastic job is lost sooner": (limits.LOST_AFTER_IF_ELASTIC, limits.LOST_AFTER),
}


@pytest.mark.parametrize("why", ORDER)
def test_order(why: str) -> None:
    shorter, longer = ORDER[why]
    assert shorter < longer, why


def test_all_limits_are_positive() -> None:
    values = [value for name, value in vars(limits).items() if name.isupper()]
    assert len(values) > 15 and all(value > 0 for value in values)
