"""The rules by which processes become ranks of an elastic job."""

import collections
import os
import sys

import pytest
from launching import FRAMEWORKS

sys.path.insert(0, str(FRAMEWORKS))
from elastic_world import World

from sirtaki.job.elastic.actions import (
    ADDED,
    REMOVED,
    Announce,
    Break,
    End,
    Form,
    Leave,
    Limit,
    Refuse,
    Rest,
    Slot,
    Start,
    Stop,
)
from sirtaki.job.elastic.membership import ELASTIC, RESET_LIMIT_EXCEEDED_MESSAGE, START, Membership, State
from sirtaki.starters.request import Host

SCHEDULES = int(os.environ.get("TEST_ELASTIC_SCHEDULES", "1000"))


def schedules(first: int, count: int) -> collections.Counter:
    ends = collections.Counter()
    for seed in range(first, first + count):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ends[world.membership.state] += 1
    return ends


def test_random_schedules_keep_the_rules_and_end():
    ends = schedules(0, SCHEDULES)
    assert ends[State.DONE] > SCHEDULES / 3 and ends[State.FAILED] > SCHEDULES / 50, ends


@pytest.mark.long
def test_very_many_random_schedules_keep_the_rules_and_end():
    schedules(1_000_000, 20_000)


# ---- each rule ----------------------------------------------------------------------------------------------------


def training(count: int = 3, **options) -> Membership:
    """A job that trains with so many members, on a host with as many slots."""
    options.setdefault("least", 1)
    membership = Membership(count, **options)
    membership.on_hosts([Host("a", count)])
    for number in range(count):
        membership.on_join(number, 0)
    for number in range(count):
        membership.on_up(number)
    assert membership.state == State.TRAINING
    membership.take()
    return membership


def only(membership: Membership, kind: type) -> list:
    return [action for action in membership.take() if isinstance(action, kind)]


def test_the_first_generation_waits_for_all_that_were_started():
    membership = Membership(need=2, least=1)
    membership.on_hosts([Host("a", 2), Host("b", 1)])
    assert only(membership, Start) == [Start(0, Slot("a", 0)), Start(1, Slot("a", 1)), Start(2, Slot("b", 0))]
    membership.on_join(2, 0)
    membership.on_join(0, 0)
    assert only(membership, Form) == []
    membership.on_join(1, 0)
    assert only(membership, Form) == [Form(1, (0, 1, 2))]
    assert membership.state == State.FORMING


def test_after_the_start_limit_the_first_generation_does_not_wait_for_more_than_it_needs():
    membership = Membership(need=2, least=1)
    membership.on_hosts([Host("a", 3)])
    membership.on_join(0, 0)
    assert Limit(START, True) in membership.take()
    membership.on_limit(START)
    assert only(membership, Form) == []
    membership.on_join(2, 0)
    assert only(membership, Form) == [Form(1, (0, 2))]


def test_survivors_go_on_without_waiting_and_the_newest_progress_leads():
    membership = training(3)
    membership.on_end(0, False, "killed")
    assert membership.take() == [
        Break(1, (1, 2), 0, "killed"),
        Limit(START, False),
        Limit(ELASTIC, True),
        Rest(Slot("a", 0), 1),
    ]
    membership.on_join(1, 4)
    assert membership.take() == [], "rank 2 lives, and comes back"
    membership.on_join(2, 5)
    assert only(membership, Form) == [Form(2, (2, 1))]


def test_the_job_knows_that_the_state_is_lost_with_all_that_had_it():
    membership = training(2)
    membership.on_end(1, False, "killed")
    membership.on_join(0, 7)
    assert only(membership, Form) == [Form(2, (0,))], "one process is left"
    membership.on_up(0)
    membership.on_rested(Slot("a", 1))
    membership.on_join(2, 0)
    membership.on_end(0, False, "killed")
    assert only(membership, Form) == [Form(3, (2,), lost_commits=7)]


def test_a_newcomer_is_announced_when_it_waits_and_admitted_when_all_members_have_come_back():
    membership = training(2)
    membership.on_end(1, False)
    membership.on_join(0, 1)
    membership.take()
    membership.on_up(0)
    membership.on_rested(Slot("a", 1))
    assert membership.take() == [Limit(START, False), Start(2, Slot("a", 1))], "the member trains meanwhile"
    membership.on_join(2, 0)
    assert membership.take() == [Announce((0,), ADDED)]
    membership.on_join(0, 7)
    assert only(membership, Form) == [Form(3, (0, 2))]


def test_members_of_a_removed_host_train_until_all_come_back_and_then_leave():
    membership = Membership(need=3, least=1)
    membership.on_hosts([Host("a", 1), Host("b", 2)])
    for number in range(3):
        membership.on_join(number, 0)
    membership.take()
    membership.on_hosts([Host("a", 2)])
    assert membership.take() == [Start(3, Slot("a", 1)), Announce((0, 1, 2), REMOVED)]
    membership.on_join(3, 0)
    assert membership.take() == [Announce((0, 1, 2), REMOVED | ADDED)]
    membership.on_join(1, 4)
    assert Leave(1, "its slot was removed") in membership.take()
    membership.on_join(0, 4)
    membership.on_join(2, 4)
    assert only(membership, Form) == [Form(2, (0, 3))]


def test_a_newcomer_on_a_removed_slot_is_ended():
    membership = training(1, most=1)
    membership.on_hosts([Host("a", 1), Host("b", 1)])
    assert membership.take() == [], "at most one"
    membership = Membership(need=1, least=1)
    membership.on_hosts([Host("a", 1), Host("b", 1)])
    membership.take()
    membership.on_hosts([Host("a", 1)])
    assert membership.take() == [End(1, kill=False)]
    membership.on_join(1, 0)
    assert only(membership, Leave) == [Leave(1, "its slot was removed")], "it had just arrived"


def test_ranks_of_a_host_follow_each_other_and_survivors_come_first():
    membership = Membership(need=2, least=1)
    membership.on_hosts([Host("a", 1), Host("b", 1)])
    membership.on_join(0, 0)
    membership.on_join(1, 0)
    membership.on_hosts([Host("a", 2), Host("b", 1)])
    membership.on_join(2, 0)
    membership.on_join(0, 3)
    membership.on_join(1, 3)
    assert only(membership, Form)[-1] == Form(2, (0, 2, 1))


def test_the_first_member_that_returns_0_ends_all_changes():
    membership = training(2)
    membership.on_hosts([Host("a", 3)])
    membership.on_join(2, 0)
    membership.take()
    membership.on_end(0, True)
    assert only(membership, Leave) == [Leave(2, "another rank has finished the job")]
    membership.on_hosts([Host("a", 5)])
    assert membership.take() == [] and membership.state == State.ENDING
    membership.on_end(2, True)
    membership.on_end(1, True)
    assert membership.state == State.DONE


def test_a_member_that_comes_back_after_another_has_finished_leaves_too():
    membership = training(3)
    membership.on_end(2, False)
    membership.on_end(0, True)
    membership.on_join(1, 5)
    assert only(membership, Leave) == [Leave(1, "another rank has finished the job")]
    membership.on_end(1, True)
    assert membership.state == State.DONE


def test_a_program_without_init_is_done_when_all_have_returned_0():
    membership = Membership(need=2, least=1)
    membership.on_hosts([Host("a", 2)])
    membership.on_end(0, True)
    membership.take()
    membership.on_join(1, 0)
    assert membership.take() == [Refuse(1, "another process of the job has ended already, without init()")]
    membership.on_end(1, False)
    assert membership.state == State.DONE and membership.first_failure == 1


def test_rests_grow_until_the_slot_has_worked_and_an_unreachable_host_rests_as_a_whole():
    membership = Membership(need=1, least=1)
    membership.on_hosts([Host("a", 1), Host("b", 2)])
    for number in range(3):
        membership.on_join(number, 0)
    membership.take()
    membership.on_end(1, False, unreachable=True)
    assert only(membership, Rest) == [Rest(Slot("b", 0), 1)], "a process still runs in the other slot"
    membership.on_end(2, False, unreachable=True)
    assert only(membership, Rest) == [Rest(Slot("b", 1), 1)]
    membership.on_rested(Slot("b", 0))
    membership.on_end(3, False)
    assert only(membership, Rest) == [Rest(Slot("b", 0), 2)]
    membership.on_join(0, 1)
    membership.on_rested(Slot("b", 0))
    membership.on_join(4, 0)
    membership.on_join(0, 2)
    membership.on_end(4, False)
    membership.on_join(0, 3)
    assert only(membership, Rest) == [Rest(Slot("b", 0), 3)], "it has not trained up to a commit"


def test_a_slot_that_has_worked_begins_with_a_short_rest_again():
    membership = training(2)
    membership.on_end(1, False)
    membership.on_rested(Slot("a", 1))
    membership.on_join(2, 0)
    membership.on_join(0, 1)
    membership.on_end(0, False)
    membership.on_join(2, 2)
    membership.take()
    membership.on_end(2, False)
    assert only(membership, Rest)[0] == Rest(Slot("a", 1), 1)


def test_the_job_fails_when_every_slot_rests():
    membership = training(2)
    membership.on_end(1, False)
    assert not membership.is_over()
    membership.on_end(0, False)
    assert only(membership, Stop) == [Stop("every slot has failed")]
    assert membership.state == State.FAILED and membership.first_failure == 1


def test_too_many_resets_fail_with_the_text_of_horovod():
    membership = training(3, reset_limit=1)
    membership.on_end(2, False)
    membership.on_join(0, 1)
    membership.on_join(1, 1)
    assert only(membership, Stop) == []
    membership.on_end(1, False)
    membership.on_join(0, 2)
    text = "Horovod was shutdown because number of resets during elastic job exceeded limit: 1"
    assert RESET_LIMIT_EXCEEDED_MESSAGE.format(1) == text and only(membership, Stop) == [Stop(text)]


def test_below_the_least_number_survivors_wait_until_the_limit():
    membership = training(2, least=2)
    membership.on_end(1, False)
    membership.on_join(0, 3)
    assert only(membership, Form) == [] and membership.state == State.CHANGING
    membership.on_rested(Slot("a", 1))
    membership.on_join(2, 0)
    assert only(membership, Form) == [Form(2, (0, 2))]
    membership.on_end(2, False)
    membership.on_join(0, 4)
    membership.on_limit(ELASTIC)
    assert only(membership, Stop) == [Stop("only 1 of at least 2 processes called init() within --elastic-timeout")]


def test_members_that_do_not_come_back_within_the_limit_are_killed():
    membership = training(3)
    membership.on_end(2, False)
    membership.on_join(0, 1)
    membership.take()
    membership.on_limit(ELASTIC)
    assert membership.take() == [End(1, kill=True), Limit(ELASTIC, True)]
    membership.on_end(1, False)
    assert only(membership, Form) == [Form(2, (0,))]


def test_a_member_that_the_others_call_lost_is_killed_after_the_shorter_limit():
    membership = training(3)
    membership.on_join(0, 1, lost=2)
    membership.on_join(1, 1, lost=2)
    assert membership.take() == [Limit(START, False), Limit(ELASTIC, True), Limit(START, True)]
    membership.on_limit(START)
    assert membership.take() == [End(2, kill=True)]
    membership.on_end(2, False)
    assert only(membership, Form) == [Form(2, (0, 1))]


def test_a_member_that_does_not_complete_init_breaks_the_generation():
    membership = Membership(need=2, least=1)
    membership.on_hosts([Host("a", 2)])
    membership.on_join(0, 0)
    membership.on_join(1, 0)
    membership.on_up(0)
    membership.take()
    membership.on_limit(START)
    assert only(membership, Break) == [Break(1, (0,), 1, "it did not complete init() in time")]
    membership.on_init_failed(1)
    membership.on_join(0, 0)
    membership.on_join(1, 0)
    assert only(membership, Form) == [Form(2, (0, 1))]


def test_failures_without_a_commit_between_them_end_the_job():
    membership = training(2)
    for _ in range(20):
        if membership.is_over():
            break
        newest = max(membership.members())
        membership.on_end(newest, False)
        membership.on_join(0, 0)
        membership.on_rested(Slot("a", 1))
        membership.on_join(newest + 1, 0)
        membership.on_join(0, 0)
    assert only(membership, Stop) == [Stop("5 generations have failed since the last commit")]


def test_a_newcomer_that_returns_0_without_init_rests():
    membership = training(1)
    membership.on_hosts([Host("a", 2)])
    membership.take()
    membership.on_end(1, True)
    assert membership.take() == [Rest(Slot("a", 1), 1)] and membership.state == State.TRAINING
